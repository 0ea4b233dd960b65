import ast
import importlib.util
from pathlib import Path

import pytest

from flinkish.common import Configuration, options
from flinkish.common.configuration_check import check_configuration, check_master, look_for_mistakes
from flinkish.errors import ConfigurationError

CHECKOUT = Path(__file__).parents[3]


@pytest.mark.parametrize(
    "key, nearest",
    [
        ("flinkish.fusd-chains", 'did you mean "flinkish.fused-chains"?'),
        ("flinkish.spark.mastr", 'did you mean "flinkish.spark.master"?'),
        ("flinkish.spark.executor.memory", "spark.executor.memory"),
        ("flinkish.launch-mod", 'did you mean "flinkish.launch-mode"?'),
    ],
)
def test_an_unknown_key_of_our_own_is_refused_with_the_nearest_one(key, nearest):
    with pytest.raises(ConfigurationError) as refused:
        check_configuration({key: "2"})
    assert key in refused.value.what and nearest in refused.value.do


@pytest.mark.parametrize(
    "key, nearest",
    [
        ("paralelism.default", "parallelism.default"),
        ("taskmanager.numberOfTaskSlot", "taskmanager.numberOfTaskSlots"),
        ("execution.bufer-timeout", "execution.buffer-timeout"),
        ("restart-strategy.typ", "restart-strategy.type"),
    ],
)
def test_a_key_that_is_nearly_a_known_one_gives_a_suggestion(key, nearest):
    assert check_configuration({key: "2"}) == [
        f'the setting "{key}" has no effect; did you mean "{nearest}"?'
    ]


@pytest.mark.parametrize(
    "key",
    [
        "my.key", "spark.executor.memory", "spark.app.name", "taskmanager.memory.process.size", "state.checkpoints.dir",
        "python.executable", "task.cancellation.timers.timeout",
        "pipeline.jars", "pipeline.global-job-parameters.day", "metrics.latency.granularity", "rest.bind-port",
    ],
)  # fmt: skip
def test_keys_of_the_user_of_spark_and_of_flink_stay_silent_except_where_strangers_are_asked_for(key):
    assert check_configuration({key: "x"}) == []
    known = key.startswith(("spark.", "pipeline.global-job-parameters.")) or key == "state.checkpoints.dir"
    warning = f'the setting "{key}" has no effect, unless the job itself reads it'
    assert look_for_mistakes({key: "x"}, strangers=True) == ([], [] if known else [warning])


@pytest.mark.parametrize(
    "key, value",
    [
        ("taskmanager.numberOfTaskSlots", "0"),
        ("taskmanager.network.max-pending-bytes", "lots"),
        ("heartbeat.interval", "0"),
        ("slot.request.timeout", "soon"),
        ("execution.target", "moon"),
        ("flinkish.fused-chains", "perhaps"),
        ("state.backend.rocksdb.checkpoint.transfer.thread.num", "0"),
    ],
)
def test_a_value_that_any_known_option_cannot_have_is_refused(key, value):
    with pytest.raises(ConfigurationError, match=key):
        check_configuration({key: value})


def test_all_mistakes_are_found_and_the_first_is_raised_in_four_lines():
    settings = {"heartbeat.timeout": "soon", "flinkish.fusd-chains": "x", "parallelism.default": "0", "execution.target": "x"}
    errors, warnings = look_for_mistakes({**settings, "paralelism.default": "2"})
    assert [error.what for error in errors] == [
        'there is no setting "flinkish.fusd-chains"', 'option "parallelism.default" cannot be \'0\'',
        'option "execution.target" cannot be \'x\'', 'option "heartbeat.timeout" cannot be \'soon\'',
    ]  # fmt: skip
    assert len(warnings) == 1 and "paralelism.default" in warnings[0]
    for key, value in settings.items():
        with pytest.raises(ConfigurationError) as refused:
            check_configuration({key: value}, where="a test")
        assert [line.split(":")[0].strip() for line in str(refused.value).splitlines()[1:]] == ["where", "why", "do"]
        assert refused.value.where == "a test"


def test_the_defaults_give_no_warning():
    defaults = {key: option.default_text() for key, option in options.ALL_OPTIONS.items() if option.has_default_value()}
    assert check_configuration(defaults) == []
    assert check_configuration({}) == []
    assert check_configuration({"restart-strategy.type": "none"}) == []


def test_what_is_stored_and_not_used_gives_one_warning():
    (warning,) = check_configuration(
        {
            "restart-strategy.type": "fixed-delay",
            "execution.checkpointing.interval": "10 s",
            "pipeline.operator-chaining.chain-operators-with-different-max-parallelism": "false",
            "metrics.latency.interval": "0",
        }
    )
    unused = "pipeline.operator-chaining.chain-operators-with-different-max-parallelism"
    assert warning == f"this version does not use {unused}"


def test_the_spellings_of_flink_1_count_where_the_new_key_is_not_set():
    settings = {"state.checkpoints.dir": "/old", "restart-strategy": "fixed-delay", "state.backend": "hashmap"}
    assert check_configuration(settings) == []
    assert options.read(settings, options.CHECKPOINT_DIRECTORY) == "/old"
    assert options.read(settings, options.RESTART_STRATEGY) == "fixed-delay"
    newer = {**settings, "execution.checkpointing.dir": "/new"}
    assert options.read(newer, options.CHECKPOINT_DIRECTORY) == "/new"
    configuration = Configuration(newer)
    assert options.CHECKPOINT_DIRECTORY in configuration
    configuration.set(options.CHECKPOINT_DIRECTORY, None)
    assert options.CHECKPOINT_DIRECTORY not in configuration, "unset in every spelling"


def test_exactly_the_options_that_nothing_reads_are_marked_as_not_used():
    setters = {
        "common/options.py", "common/execution_config.py", "common/restart_strategy.py",
        "common/configuration_check.py", "datastream/checkpoint_config.py", "datastream/checkpoint_storage.py",
        "datastream/state_backend.py", "datastream/stream_execution_environment.py",
    }  # fmt: skip
    without_reader = {
        "PIPELINE_CLOSURE_CLEANER",  # there is nothing to clean
        "SPARK_MASTER",  # read by its key in spark_plugin.session
    }
    files = [*(CHECKOUT / "flinkish").rglob("*.py"), *(CHECKOUT / "spark_plugin").rglob("*.py")]
    read = {
        node.attr
        for file in files
        if not any(file.as_posix().endswith("flinkish/" + setter) for setter in setters)
        if file.name != "doctor.py"  # it tries what jobs do not use yet
        for node in ast.walk(ast.parse(file.read_text()))
        if isinstance(node, ast.Attribute)
    }
    names = {name: value.key for name, value in vars(options).items() if isinstance(value, options.ConfigOption)}
    assert set(names.values()) == set(options.ALL_OPTIONS)
    unread = {key for name, key in names.items() if name not in read | without_reader}
    assert unread == options.NOT_USED_YET
    for key, option in options.ALL_OPTIONS.items():
        assert option.description.endswith("Not used yet.") == (key in unread), key


@pytest.mark.parametrize(
    "master",
    ["local", "local[4]", "local[*]", "local[2,3]", "local[*, 3]", "local-cluster[2,1,1024]", "spark://h:7077", "yarn",
     "k8s://https://h:6443", "sc://h:15002/;token=t"],
)  # fmt: skip
def test_the_known_forms_of_a_master_pass(master):
    check_master(master, "--master")
    assert check_configuration({"flinkish.spark.master": master}) == []


@pytest.mark.parametrize(
    "master, where, do",
    [
        ("minicluster", "--master", 'did you mean "mini-cluster"?'),
        ("mini_cluster", "flinkish.spark.master", "set execution.target to mini-cluster"),
        ("mini-cluster", "flinkish.spark.master", "set execution.target to mini-cluster"),
        ("foo", "--master", "give one of local, "),
        ("local[x]", "--master", "did you mean"),
        ("Yarn", "--master", 'did you mean "yarn"?'),
    ],
)
def test_other_masters_are_refused_with_a_suggestion(master, where, do):
    with pytest.raises(ConfigurationError) as refused:
        check_master(master, where)
    error = refused.value
    assert f'"{master}"' in error.what and error.where == where and error.why
    assert error.do.startswith(do)


#: Of Flink 2.3's ``CheckpointingOptions``.
FLINK_CHECKPOINTING_KEYS = """
    aligned-checkpoint-timeout checkpoints-after-tasks-finish cleaner.parallel-mode create-subdir data-inline-threshold
    dir externalized-checkpoint-retention file-merging.across-checkpoint-boundary file-merging.enabled
    file-merging.max-file-size file-merging.max-space-amplification file-merging.max-subtasks-per-file
    file-merging.pool-blocking incremental interval interval-during-backlog local-backup.dirs local-backup.enabled
    max-concurrent-checkpoints min-pause mode num-retained recover-without-channel-state.checkpoint-id savepoint-dir
    snapshot-compression storage timeout tolerable-failed-checkpoints unaligned.during-recovery.enabled
    unaligned.enabled unaligned.forced unaligned.interruptible-timers.enabled
    unaligned.max-subtasks-per-channel-state-file unaligned.recover-output-on-downstream.enabled write-buffer-size
""".split()


@pytest.mark.parametrize("name", FLINK_CHECKPOINTING_KEYS)
def test_each_checkpointing_key_of_flink_works_or_says_why_it_has_no_effect(name):
    key = f"execution.checkpointing.{name}"
    if key in options.ALL_OPTIONS:
        assert key not in options.NOT_USED_YET
    else:
        (warning,) = check_configuration({key: "x"})
        assert warning.startswith(f'the setting "{key}" has no effect: ')


def test_a_state_backend_whose_package_is_missing_is_refused(monkeypatch):
    settings = {"state.backend": "rocksdb"}
    assert check_configuration(settings) == []
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ConfigurationError, match="the package rocksdict is not installed"):
        check_configuration(settings)


def test_a_changelog_is_kept_with_either_state_backend():
    settings = {"state.changelog.enabled": "true", "state.changelog.periodic-materialize.interval": "1 min"}
    for backend in ("rocksdb", "hashmap"):
        assert check_configuration({**settings, "state.backend.type": backend}) == []


FLOATS = [option for option in options.ALL_OPTIONS.values() if isinstance(option.default, float)]


@pytest.mark.parametrize("option", FLOATS, ids=lambda option: option.key)
@pytest.mark.parametrize("value", ["nan", "inf", "-inf", "-1", "1e300", float("nan"), float("inf")])
def test_every_ratio_and_factor_has_limits_that_nan_and_infinity_are_not_in(option, value):
    with pytest.raises(ConfigurationError, match=option.key) as refused:
        check_configuration({option.key: value})
    assert "a number from " in refused.value.why and "from " in refused.value.do


def test_a_ratio_goes_from_0_to_1():
    assert len(FLOATS) == 4
    jitter = options.RESTART_EXPONENTIAL_JITTER
    assert [jitter.parse(text) for text in ("0", "1", "0.25")] == [0, 1, 0.25]
    with pytest.raises(ConfigurationError, match="5") as refused:
        jitter.parse("5")
    assert refused.value.why == "it is a number from 0 to 1"


CHOICES = [(option, choice) for option in options.ALL_OPTIONS.values() for choice in option.choices]


@pytest.mark.parametrize("option, choice", CHOICES, ids=lambda part: getattr(part, "key", part))
def test_words_are_taken_in_any_letter_case_and_with_either_dash(option, choice):
    for text in (choice, choice.lower(), choice.upper(), choice.title(), f" {choice} "):
        for other in (text, text.replace("_", "-"), text.replace("-", "_")):
            assert option.read({option.key: other}) == choice
    with pytest.raises(ConfigurationError, match="it has other values"):
        option.parse(choice + "x")


@pytest.mark.parametrize(
    "word, kind",
    [
        ("off", "none"),
        ("disable", "none"),
        ("None", "none"),
        ("fixeddelay", "fixed-delay"),
        ("FailureRate", "failure-rate"),
        ("exponentialdelay", "exponential-delay"),
    ],
)
def test_restart_strategies_have_the_other_words_of_flink(word, kind):
    assert options.read({"restart-strategy": word}, options.RESTART_STRATEGY) == kind
    assert check_configuration({"restart-strategy.type": word}) == []


@pytest.mark.parametrize("word, kind", [("filesystem", "hashmap"), ("JobManager", "hashmap"), ("rocksdb", "rocksdb")])
def test_state_backends_have_the_words_of_flink_1(word, kind):
    assert options.read({"state.backend": word}, options.STATE_BACKEND) == kind
    assert options.read({"state.backend": word}, options.CHECKPOINT_STORAGE) is None
    assert not any("cannot be" in line for line in check_configuration({"state.backend": word}))
