"""Every setting of flinkish in one table: key, type, default, and why.

``conf/flinkish-conf.yaml`` is written from this table (``python -m flinkish.common.options``), and
a test keeps them equal.  Durations read as int milliseconds, memory sizes as int bytes.
Read one from any mapping with `read`::

    read({"heartbeat.timeout": "5 s"}, HEARTBEAT_TIMEOUT)  # 5000
"""

from __future__ import annotations

from typing import Any, Mapping, TypeVar

from flinkish.common.config_options import ConfigOption

T = TypeVar("T")

ALL_OPTIONS: dict[str, ConfigOption] = {}
#: Keys that a program can set and read back, and that nothing acts on yet.
NOT_USED_YET: set[str] = set()


def _option(key: str, kind: str, default: Any, description: str, **limits: Any) -> ConfigOption:
    option: ConfigOption = ConfigOption(key, kind, default, description, **limits)
    assert key not in ALL_OPTIONS, key
    ALL_OPTIONS[key] = option
    return option


def _option_for_later(key: str, kind: str, default: Any, description: str, **limits: Any) -> ConfigOption:
    """One that a later version uses; a job that sets it to anything but its default gets a warning."""
    NOT_USED_YET.add(key)
    return _option(key, kind, default, f"{description} Not used yet.", **limits)


def read(mapping: Mapping[str, Any], option: "ConfigOption[T]") -> T:
    """Typed value of ``option`` in ``mapping`` (text or typed values), or its default."""
    return option.read(mapping)


# ---- the job ------------------------------------------------------------------------------------

PARALLELISM_DEFAULT = _option(
    "parallelism.default", "int", 1, "Subtasks of an operator that sets no parallelism.", minimum=1
)
PIPELINE_NAME = _option("pipeline.name", "string", None, "Name of a job that `execute` gives none.")
PIPELINE_MAX_PARALLELISM = _option(
    "pipeline.max-parallelism",
    "int",
    -1,
    "Number of key groups, the most subtasks a keyed operator can ever have. "
    "-1: derived from the parallelism as in Flink, at least 128.",
    minimum=-1,
)
PIPELINE_OBJECT_REUSE = _option(
    "pipeline.object-reuse",
    "boolean",
    False,
    "Hand emitted mutable values on without a copy. Faster, and wrong when a function changes a "
    "value after it has emitted it.",
)
PIPELINE_AUTO_WATERMARK_INTERVAL = _option(
    "pipeline.auto-watermark-interval",
    "duration",
    200,
    "How often sources and timestamp assigners emit their watermark. 0: never periodically.",
    minimum=0,
)
ALLOW_UNALIGNED_SOURCE_SPLITS = _option(
    "pipeline.watermark-alignment.allow-unaligned-source-splits",
    "boolean",
    False,
    "Where watermarks are aligned, let readers that cannot pause single splits be aligned as a whole. Else a job "
    "with such a reader of several splits fails.",
)
PIPELINE_OPERATOR_CHAINING = _option(
    "pipeline.operator-chaining.enabled",
    "boolean",
    True,
    "Run neighbouring operators in one loop where nothing is repartitioned between them.",
    older_keys=("pipeline.operator-chaining",),
)
PIPELINE_CHAINING_DIFFERENT_MAX_PARALLELISM = _option_for_later(
    "pipeline.operator-chaining.chain-operators-with-different-max-parallelism",
    "boolean",
    True,
    "Chain operators also where their max parallelism differs.",
)
PIPELINE_AUTO_GENERATE_UIDS = _option(
    "pipeline.auto-generate-uids",
    "boolean",
    True,
    "Derive the id of an operator from its name when it has no uid (where several have the same "
    "name: from its inputs too). "
    "false: refuse operators without uid, so that state always finds its way back.",
)
PIPELINE_GLOBAL_JOB_PARAMETERS = _option(
    "pipeline.global-job-parameters", "map", None, "key:value pairs that functions see in `open`."
)
PIPELINE_CLOSURE_CLEANER = _option(
    "pipeline.closure-cleaner.enabled",
    "boolean",
    True,
    "Kept for PyFlink programs; Python closures carry only what they name, so nothing is cleaned.",
)
EXECUTION_RUNTIME_MODE = _option(
    "execution.runtime-mode",
    "string",
    "STREAMING",
    "STREAMING: results as records come. BATCH: of bounded input, the final results of each key. AUTOMATIC: BATCH "
    "where all sources are bounded.",
    choices=("STREAMING", "BATCH", "AUTOMATIC"),
)
SORTED_INPUTS_MEMORY = _option(
    "execution.sorted-inputs.memory",
    "memory",
    128 * 1024 * 1024,
    "In BATCH mode, what the sorted input of one subtask of a keyed operator takes in memory before it goes to a file "
    "in the temporary folder.",
    minimum=0,
)
EXECUTION_BUFFER_TIMEOUT = _option(
    "execution.buffer-timeout",
    "duration",
    100,
    "Longest time a record waits in an open batch while its task is busy; an idle task sends at "
    "once. -1: only full batches are sent.",
    minimum=-1,
)
EXECUTION_TARGET = _option(
    "execution.target",
    "string",
    "spark-application",
    "Where slots run: a Spark stage of this job (spark-application), slots of a session that stay "
    "up (spark-session), or local processes without a JVM (mini-cluster).",
    choices=("spark-application", "spark-session", "mini-cluster"),
)
FUSED_CHAINS = _option(
    "flinkish.fused-chains",
    "boolean",
    True,
    "Compile each operator chain into one Python loop. false: interpret it, to find an error in "
    "flinkish itself.",
)

# ---- slots and the cluster ----------------------------------------------------------------------

SPARK_MASTER = _option(
    "flinkish.spark.master",
    "string",
    None,
    "Spark master when flinkish makes the session itself; sc://HOST:PORT: a server of Spark Connect. Unset: "
    "spark-submit's or local.",
)
LAUNCH_MODE = _option(
    "flinkish.launch-mode",
    "string",
    "barrier",
    "barrier: all slots are tasks of one Spark stage, which start together and are lost together. "
    "independent: each is a Spark job of its own, so that a lost Python worker or executor costs only its "
    "slots, and dynamic allocation may be on; slots may then come one after another.",
    choices=("barrier", "independent"),
)
FAILOVER_STRATEGY = _option(
    "jobmanager.execution.failover-strategy",
    "string",
    "region",
    "What restarts after a failure of a task or slot: the tasks that exchange records with the failed ones, directly or by "
    "others, which with a shuffle are all (region), or always all tasks (full). With scheduler-mode reactive: always all.",
    choices=("region", "full"),
)
SCHEDULER_MODE = _option(
    "scheduler-mode",
    "string",
    None,
    "reactive: a job uses whatever slots there are, at most its max parallelism, and is rescaled when slots come or go. "
    "Unset: it has the parallelism that the program says.",
    choices=("reactive",),
)
SUBMISSION_STABILIZATION_TIMEOUT = _option(
    "jobmanager.adaptive-scheduler.submission.resource-stabilization-timeout",
    "duration",
    10_000,
    "With scheduler-mode reactive: how long a job that starts, or restarts, with fewer slots than it had waits for more, "
    "counted from the last change.",
    minimum=0,
    older_keys=("jobmanager.adaptive-scheduler.resource-stabilization-timeout",),
)
EXECUTING_STABILIZATION_TIMEOUT = _option(
    "jobmanager.adaptive-scheduler.executing.resource-stabilization-timeout",
    "duration",
    60_000,
    "With scheduler-mode reactive: how long free slots must have been there, without a change, before a job that runs "
    "takes them.",
    minimum=0,
)
COOLDOWN_AFTER_RESCALING = _option(
    "jobmanager.adaptive-scheduler.executing.cooldown-after-rescaling",
    "duration",
    30_000,
    "With scheduler-mode reactive: the shortest time between two rescalings of a job that runs.",
    minimum=0,
    older_keys=("jobmanager.adaptive-scheduler.scaling-interval.min",),
)
JOB_MANAGER_RPC_ADDRESS = _option(
    "jobmanager.rpc.address",
    "string",
    None,
    "Name or address by which executors reach the program that calls execute(). Unset: Spark's driver "
    "host; with Spark Connect, this machine's address on the way to the server.",
)
JOB_MANAGER_BIND_HOST = _option(
    "jobmanager.bind-host",
    "string",
    None,
    "Address of this machine that the program listens on for its slots. Unset: the one that Spark's driver "
    "listens on; with Spark Connect, as jobmanager.rpc.address when that is unset.",
)
NUM_TASK_SLOTS = _option(
    "taskmanager.numberOfTaskSlots",
    "int",
    1,
    "Slot processes that one Spark task supervises. Spark counts spark.task.cpus cores for all of them, and may "
    "give the others to DataFrame jobs. More slots than all executors have cores are allowed, with a warning, "
    "because slots that wait for brokers or disks need little of a core. Of execution.target mini-cluster: slots "
    "that there are at least, so that a job can be rescaled to them.",
    minimum=1,
)
SLOT_REQUEST_TIMEOUT = _option(
    "slot.request.timeout",
    "duration",
    60_000,
    "How long a job waits for slots that the cluster has but that are busy.",
    minimum=0,
)
HEARTBEAT_INTERVAL = _option(
    "heartbeat.interval", "duration", 1_000, "How often supervisors and slots report.", minimum=1
)
HEARTBEAT_TIMEOUT = _option(
    "heartbeat.timeout",
    "duration",
    10_000,
    "Silence after which the other side counts as lost; a slot then cancels itself.",
    minimum=1,
)
TASK_CANCELLATION_INTERVAL = _option(
    "task.cancellation.interval",
    "duration",
    1_000,
    "Time a cancelled task has before user code that still runs is interrupted by an exception, and between "
    "two such attempts. 0: never.",
    minimum=0,
)
TASK_CANCELLATION_TIMEOUT = _option(
    "task.cancellation.timeout",
    "duration",
    10_000,
    "Time after which the slot of a task that does not end is killed; its stacks are logged. 0: never.",
    minimum=0,
)

# ---- security ------------------------------------------------------------------------------------

SSL_INTERNAL_ENABLED = _option(
    "security.ssl.internal.enabled",
    "boolean",
    False,
    "Encrypt the TCP connections between driver and slots by TLS 1.3, both sides with a certificate. The key "
    "reaches the slots with the tasks that Spark sends, so let Spark encrypt too "
    "(spark.network.crypto.enabled). Unix sockets between slots of one host are not encrypted.",
)
SSL_INTERNAL_CERTIFICATE = _option(
    "security.ssl.internal.certificate",
    "string",
    None,
    "PEM file on the driver with the certificate of all processes, and the chain behind it. Unset: each "
    "job or session makes its own.",
)
SSL_INTERNAL_KEY = _option(
    "security.ssl.internal.key",
    "string",
    None,
    "PEM file on the driver with the key of that certificate, without a password.",
)
SSL_INTERNAL_CA = _option(
    "security.ssl.internal.ca",
    "string",
    None,
    "PEM file on the driver with the authorities whose certificates are taken. Unset: only that very certificate.",
)

# ---- records between slots ----------------------------------------------------------------------

MAX_RECORDS_PER_BATCH = _option(
    "taskmanager.network.max-records-per-batch",
    "int",
    1024,
    "Records of a sealed batch, the unit of credit. Larger is faster and waits longer when busy.",
    minimum=1,
)
CREDITS_PER_CHANNEL = _option(
    "taskmanager.network.credits-per-channel",
    "int",
    4,
    "Batches that may be under way on one channel before its sender waits.",
    minimum=1,
)
MAX_PENDING_BYTES = _option(
    "taskmanager.network.max-pending-bytes",
    "memory",
    1 << 20,
    "Bytes a slot keeps for one peer that does not read; above it, it sends that peer nothing.",
    minimum=1,
)

# ---- state, checkpoints, restarts ---------------------------------------------------------------

STATE_BACKEND = _option(
    "state.backend.type",
    "string",
    "hashmap",
    "Where keyed state lives: hashmap (Python objects in memory) or rocksdb (on the slot's disk, behind a cache of "
    "objects; needs the package rocksdict). As in Flink 1.x the key may be state.backend, and filesystem and jobmanager "
    "mean hashmap; where snapshots go is execution.checkpointing.storage's to say.",
    choices=("hashmap", "rocksdb"),
    older_keys=("state.backend",),
    aliases=(("filesystem", "hashmap"), ("jobmanager", "hashmap")),
)
CHECKPOINTING_INTERVAL = _option(
    "execution.checkpointing.interval",
    "duration",
    None,
    "How often a checkpoint starts. Unset: none.",
    minimum=1,
)
CHECKPOINTING_MODE = _option(
    "execution.checkpointing.mode",
    "string",
    "EXACTLY_ONCE",
    "Whether barriers are aligned (EXACTLY_ONCE) or records may be seen twice (AT_LEAST_ONCE).",
    choices=("EXACTLY_ONCE", "AT_LEAST_ONCE"),
)
CHECKPOINTING_TIMEOUT = _option(
    "execution.checkpointing.timeout",
    "duration",
    600_000,
    "Age at which a checkpoint that is not complete is given up.",
    minimum=1,
)
CHECKPOINTING_MIN_PAUSE = _option(
    "execution.checkpointing.min-pause",
    "duration",
    0,
    "Least time between the end of a checkpoint and the start of the next.",
    minimum=0,
)
CHECKPOINTING_MAX_CONCURRENT = _option(
    "execution.checkpointing.max-concurrent-checkpoints",
    "int",
    1,
    "Checkpoints that may be under way at once.",
    minimum=1,
)
CHECKPOINTING_TOLERABLE_FAILURES = _option(
    "execution.checkpointing.tolerable-failed-checkpoints",
    "int",
    0,
    "Failed checkpoints in a row that do not yet fail the job.",
    minimum=0,
)
CHECKPOINTING_RETENTION = _option(
    "execution.checkpointing.externalized-checkpoint-retention",
    "string",
    "NO_EXTERNALIZED_CHECKPOINTS",
    "What happens to the checkpoints of a job that ends: RETAIN_ON_CANCELLATION keeps them when it is cancelled or "
    "fails, DELETE_ON_CANCELLATION when it fails. Those of a driver that is killed are always there.",
    choices=("NO_EXTERNALIZED_CHECKPOINTS", "RETAIN_ON_CANCELLATION", "DELETE_ON_CANCELLATION"),
)
CHECKPOINTING_UNALIGNED = _option(
    "execution.checkpointing.unaligned.enabled",
    "boolean",
    False,
    "Let barriers overtake records, so that backpressure does not delay checkpoints; what they overtake is in the "
    "checkpoint. Not with AT_LEAST_ONCE, nor with several concurrent checkpoints. Savepoints are always aligned, and so "
    "are tasks that get records by forward, rescale or broadcast.",
    older_keys=("execution.checkpointing.unaligned",),
)
CHECKPOINTING_FORCE_UNALIGNED = _option(
    "execution.checkpointing.unaligned.forced",
    "boolean",
    False,
    "Unaligned also with custom partitioners: they must give the same number for the same key and number of "
    "partitions, because after a rescale they are asked again about records in flight.",
)
CHECKPOINTING_ALIGNED_TIMEOUT = _option(
    "execution.checkpointing.aligned-checkpoint-timeout",
    "duration",
    0,
    "With unaligned checkpoints: age of a checkpoint at which its barriers begin to overtake; until then they are "
    "aligned. 0: they overtake at once.",
    minimum=0,
    older_keys=("execution.checkpointing.alignment-timeout",),
)
CHECKPOINT_STORAGE = _option(
    "execution.checkpointing.storage",
    "string",
    None,
    "jobmanager: snapshots stay in the driver's memory. filesystem: they go to execution.checkpointing.dir. "
    "Unset: filesystem when that is set.",
    choices=("jobmanager", "filesystem"),
    older_keys=("state.checkpoint-storage",),
)
CHECKPOINT_DIRECTORY = _option(
    "execution.checkpointing.dir",
    "string",
    None,
    "Folder or URL under which checkpoints are kept; driver and slots must reach it. Unset: the driver keeps them "
    "in its memory, so they end with it.",
    older_keys=("state.checkpoints.dir",),
)
SAVEPOINT_DIRECTORY = _option(
    "execution.checkpointing.savepoint-dir",
    "string",
    None,
    "Where savepoints go by default.",
    older_keys=("state.savepoints.dir",),
)
CHECKPOINTS_RETAINED = _option(
    "execution.checkpointing.num-retained",
    "int",
    1,
    "Complete checkpoints that are kept; older ones are deleted.",
    minimum=1,
    older_keys=("state.checkpoints.num-retained",),
)
STATE_RECOVERY_PATH = _option(
    "execution.state-recovery.path",
    "string",
    None,
    "Checkpoint or savepoint that the job goes on from: its folder or its _metadata. latest: the newest complete "
    "checkpoint under execution.checkpointing.dir of a job with the same name; the job begins anew when there "
    "is none.",
    older_keys=("execution.savepoint.path",),
)
STATE_RECOVERY_CLAIM_MODE = _option(
    "execution.state-recovery.claim-mode",
    "string",
    None,
    "Whether the checkpoint that the job goes on from becomes its own, to be deleted when newer ones are complete "
    "(CLAIM), or is left alone (NO_CLAIM). With latest and CLAIM the older ones of the same run go with it, and what it "
    "has not completed; a damaged one stays for you to look at (flinkish savepoint list, and dispose --force). Unset: "
    "CLAIM with latest, else NO_CLAIM.",
    choices=("CLAIM", "NO_CLAIM"),
    older_keys=("execution.savepoint-restore-mode",),
)
STATE_RECOVERY_IGNORE_UNCLAIMED = _option(
    "execution.state-recovery.ignore-unclaimed-state",
    "boolean",
    False,
    "Drop saved state whose operator the program does not have, instead of refusing to start.",
    older_keys=("execution.savepoint.ignore-unclaimed-state",),
)
RECOVERY_TIMEOUT = _option(
    "flinkish.recovery.timeout",
    "duration",
    600_000,
    "How long a job may take from the end of the restart delay until all of its tasks run again; then it fails and "
    "says what it waited for.",
    minimum=1,
)
SNAPSHOT_COMPRESSION = _option(
    "execution.checkpointing.snapshot-compression",
    "boolean",
    False,
    "Compress the keyed state of hashmap in checkpoints, and of both backends in savepoints (zstd). Files of rocksdb "
    "are compressed by itself.",
)
ROCKSDB_INCREMENTAL = _option(
    "execution.checkpointing.incremental",
    "boolean",
    True,
    "Checkpoints of rocksdb store only the files that are new since the last one; false: all of the state, in the "
    "format of savepoints.",
    older_keys=("state.backend.incremental",),
)
MANAGED_MEMORY_SIZE = _option(
    "taskmanager.memory.managed.size",
    "memory",
    256 << 20,
    "Memory of a Spark task's slots for rocksdb: objects, blocks and write buffers. It is not Spark's: leave room for "
    "it in spark.executor.memoryOverhead.",
    minimum=1 << 20,
)
ROCKSDB_MEMORY_FIXED_PER_SLOT = _option(
    "state.backend.rocksdb.memory.fixed-per-slot",
    "memory",
    None,
    "Memory of one slot for rocksdb. Unset: a slot's part of taskmanager.memory.managed.size.",
    minimum=1 << 20,
)
ROCKSDB_WRITE_BUFFER_RATIO = _option(
    "state.backend.rocksdb.memory.write-buffer-ratio",
    "ratio",
    0.5,
    "The most of what rocksdb has for blocks that its write buffers may take.",
)
ROCKSDB_OBJECT_CACHE_RATIO = _option(
    "flinkish.rocksdb.object-cache-ratio",
    "ratio",
    0.5,
    "Part of a slot's memory for rocksdb that holds Python objects, so that what is used often is not read again.",
)
CHANGELOG_ENABLED = _option(
    "state.changelog.enabled",
    "boolean",
    False,
    "Checkpoints in files store what has changed since the last base, and bases are made between checkpoints. rocksdb "
    "always does so where checkpoints are incremental.",
    older_keys=("state.backend.changelog.enabled",),
)
CHANGELOG_MATERIALIZE_INTERVAL = _option(
    "state.changelog.periodic-materialize.interval",
    "duration",
    600_000,
    "With state.changelog.enabled: the longest time between two bases. -1: only when the changes have outgrown the base.",
    minimum=-1,
    older_keys=("state.backend.changelog.periodic-materialize.interval",),
)
CHANGELOG_MAX_FAILURES = _option(
    "state.changelog.max-failures-allowed",
    "int",
    3,
    "Bases that may fail one after the other before the task fails.",
    minimum=0,
    older_keys=("state.backend.changelog.max-failures-allowed",),
)
ROCKSDB_LOCAL_DIRECTORIES = _option(
    "state.backend.rocksdb.localdir",
    "list",
    None,
    "Folders on the slot's disks for rocksdb. Unset: the temporary folder.",
)
ROCKSDB_COMPACTION_STYLE = _option(
    "state.backend.rocksdb.compaction.style",
    "string",
    "UNIVERSAL",
    "How rocksdb merges its files. UNIVERSAL writes, and so uploads, half as much as Flink's default LEVEL, and takes "
    "up to three times the state's size on the disk.",
    choices=("UNIVERSAL", "LEVEL"),
)
ROCKSDB_PREDEFINED_OPTIONS = _option(
    "state.backend.rocksdb.predefined-options",
    "string",
    "DEFAULT",
    "For slow or fast disks: more background threads but with DEFAULT, larger blocks with HIGH_MEM.",
    choices=(
        "DEFAULT",
        "SPINNING_DISK_OPTIMIZED",
        "SPINNING_DISK_OPTIMIZED_HIGH_MEM",
        "FLASH_SSD_OPTIMIZED",
    ),
)
ROCKSDB_TRANSFER_THREADS = _option_for_later(
    "state.backend.rocksdb.checkpoint.transfer.thread.num", "int", 4, "Parallel uploads.", minimum=1
)
RESTART_STRATEGY = _option(
    "restart-strategy.type",
    "string",
    None,
    "What happens after a failure: none, fixed-delay, failure-rate or exponential-delay. Unset: "
    "exponential-delay with checkpoints, none without.",
    choices=("none", "fixed-delay", "failure-rate", "exponential-delay"),
    older_keys=("restart-strategy",),
    aliases=(
        ("off", "none"),
        ("disable", "none"),
        ("fixeddelay", "fixed-delay"),
        ("failurerate", "failure-rate"),
        ("exponentialdelay", "exponential-delay"),
    ),
)
RESTART_FIXED_DELAY_ATTEMPTS = _option(
    "restart-strategy.fixed-delay.attempts", "int", 1, "Restarts before the job fails.", minimum=0
)
RESTART_FIXED_DELAY_DELAY = _option(
    "restart-strategy.fixed-delay.delay", "duration", 1_000, "Pause before a restart.", minimum=0
)
RESTART_FAILURE_RATE_MAX = _option(
    "restart-strategy.failure-rate.max-failures-per-interval",
    "int",
    1,
    "Failures within the interval that do not yet fail the job.",
    minimum=0,
)
RESTART_FAILURE_RATE_INTERVAL = _option(
    "restart-strategy.failure-rate.failure-rate-interval",
    "duration",
    60_000,
    "Interval in which failures are counted.",
    minimum=1,
)
RESTART_FAILURE_RATE_DELAY = _option(
    "restart-strategy.failure-rate.delay", "duration", 1_000, "Pause before a restart.", minimum=0
)
RESTART_EXPONENTIAL_INITIAL = _option(
    "restart-strategy.exponential-delay.initial-backoff", "duration", 1_000, "The first pause.", minimum=1
)
RESTART_EXPONENTIAL_MAX = _option(
    "restart-strategy.exponential-delay.max-backoff", "duration", 60_000, "The longest pause.", minimum=1
)
RESTART_EXPONENTIAL_MULTIPLIER = _option(
    "restart-strategy.exponential-delay.backoff-multiplier",
    "float",
    1.5,
    "How much longer each pause is than the one before: 1 or more.",
    minimum=1,
    maximum=1_000_000,
)
RESTART_EXPONENTIAL_RESET = _option(
    "restart-strategy.exponential-delay.reset-backoff-threshold",
    "duration",
    3_600_000,
    "Time without a failure after which the pause is the first one again.",
    minimum=1,
)
RESTART_EXPONENTIAL_JITTER = _option(
    "restart-strategy.exponential-delay.jitter-factor",
    "ratio",
    0.1,
    "Part of the pause that is added or taken away by chance, so that jobs do not all start at once.",
)
RESTART_EXPONENTIAL_ATTEMPTS = _option(
    "restart-strategy.exponential-delay.attempts-before-reset-backoff",
    "int",
    2**31 - 1,
    "Restarts before the job fails, counted from 0 again when the pause is.",
    minimum=0,
)
LATENCY_INTERVAL = _option_for_later(
    "metrics.latency.interval",
    "duration",
    0,
    "How often sources send latency markers. 0: never.",
    minimum=0,
)

# ---- high availability --------------------------------------------------------------------------

HIGH_AVAILABILITY_TYPE = _option(
    "high-availability.type",
    "string",
    "NONE",
    "How one of several drivers that run the same script is made leader, so that another takes over when it is gone: "
    "filesystem (a lease in high-availability.storageDir) or zookeeper.",
    choices=("NONE", "filesystem", "zookeeper"),
    older_keys=("high-availability",),
)
HIGH_AVAILABILITY_CLUSTER_ID = _option(
    "high-availability.cluster-id",
    "string",
    "/default",
    "What the drivers that belong together have in common, and another run of the script has not: a job that has ended "
    "under it is not run again.",
)
HIGH_AVAILABILITY_STORAGE_DIR = _option(
    "high-availability.storageDir",
    "string",
    None,
    "Folder on a disk or NFS that all drivers share, for leases and for where jobs stand; with filesystem.",
)
JOB_RESULT_STORE_DELETE_ON_COMMIT = _option(
    "job-result-store.delete-on-commit",
    "boolean",
    False,
    "With high availability: forget a job when it has ended, as Flink does unless told otherwise. A driver that still "
    "stands by, or is started again with the same cluster-id, then runs it once more.",
)
HIGH_AVAILABILITY_LEASE_DURATION = _option(
    "high-availability.filesystem.leader-election.lease-duration",
    "duration",
    15_000,
    "How long a lease that is not renewed keeps others away; it is renewed three times in it.",
    minimum=100,
)
HIGH_AVAILABILITY_RETRY_PERIOD = _option(
    "high-availability.filesystem.leader-election.retry-period",
    "duration",
    1_000,
    "How often a standby looks at the lease.",
    minimum=10,
)
HIGH_AVAILABILITY_ZOOKEEPER_QUORUM = _option(
    "high-availability.zookeeper.quorum",
    "string",
    None,
    "Servers of ZooKeeper: host:port,host:port.",
)
HIGH_AVAILABILITY_ZOOKEEPER_ROOT = _option(
    "high-availability.zookeeper.path.root",
    "string",
    "/flink",
    "Node under which each cluster-id has its own.",
)
HIGH_AVAILABILITY_ZOOKEEPER_SESSION_TIMEOUT = _option(
    "high-availability.zookeeper.client.session-timeout",
    "duration",
    60_000,
    "How long a driver that is silent stays leader; the servers may allow less or more.",
    minimum=100,
)
HIGH_AVAILABILITY_ZOOKEEPER_CONNECTION_TIMEOUT = _option(
    "high-availability.zookeeper.client.connection-timeout",
    "duration",
    15_000,
    "How long a driver tries to reach a server at its start.",
    minimum=1,
)

# ---- REST ---------------------------------------------------------------------------------------

REST_PORT = _option(
    "rest.port",
    "int",
    0,
    "Port on which a driver that runs jobs answers to the command line. 0: any that is free, which programs of the same "
    "user on the same machine find by themselves. -1: none.",
    minimum=-1,
    older_keys=("web.port", "jobmanager.web.port"),
)
REST_BIND_ADDRESS = _option(
    "rest.bind-address",
    "string",
    "127.0.0.1",
    "Address of this machine on which it does so. On any but 127.0.0.1 others can see the jobs, and overhear the token.",
    older_keys=("web.address", "jobmanager.web.address"),
)
REST_ADDRESS = _option(
    "rest.address",
    "string",
    None,
    "Name by which clients reach it, besides localhost and numbers; requests to any other name are refused.",
)
REST_TOKEN_FILE = _option(
    "flinkish.rest.token-file",
    "string",
    None,
    "File whose first line is the token that changes of jobs over REST want. Unset: each driver makes one of its own, "
    "which programs of the same user on the same machine find by themselves.",
)

# ---- Python -------------------------------------------------------------------------------------

PYTHON_FILES = _option(
    "python.files", "list", None, "Python files and folders that slots need on their path."
)


def conf_file_text() -> str:
    """Text of ``conf/flinkish-conf.yaml``: each key with type, reason and default."""
    lines = [
        "# Every setting of flinkish with its default. Written from flinkish/common/options.py by",
        "#   python -m flinkish.common.options > conf/flinkish-conf.yaml",
        "# Used when the environment variable FLINKISH_CONF_DIR names this folder. A commented key has",
        "# no default. What a program or the command line sets goes before this file.",
    ]
    for option in ALL_OPTIONS.values():
        lines.append("")
        lines.extend(_wrap(f"{option.description} ({_kind_text(option)})"))
        if option.has_default_value():
            lines.append(f"{option.key}: {option.default_text()}")
        else:
            lines.append(f"# {option.key}:")
    return "\n".join(lines) + "\n"


def _kind_text(option: ConfigOption) -> str:
    if option.choices:
        return " | ".join(option.choices)
    return {
        "duration": 'duration: "200 ms", "10 s", "5 min", "1 h"',
        "memory": 'memory size: "64 kb", "1 mb"',
        "ratio": "ratio: 0 to 1",
        "list": "list: a;b",
        "map": "map: key:value,key:value",
    }.get(option.kind, option.kind)


def _wrap(text: str, width: int = 98) -> list[str]:
    lines, line = [], "#"
    for word in text.split():
        if len(line) + 1 + len(word) > width:
            lines.append(line)
            line = "#"
        line += " " + word
    return [*lines, line]


if __name__ == "__main__":
    print(conf_file_text(), end="")
