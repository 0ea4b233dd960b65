"""The JobManager: pure cores that decide; ``flinkish.shell.job_manager`` runs what they decide.

    Dispatcher            all jobs by id; routes events to the cores below and their effects back
    ├── ResourceManager   supervisors, slots, requests for slots
    └── JobMaster         one per job: its status, its executions, failure, cancellation, the end
    SourceCoordinator, SinkCommittablesCollector: user code of the driver's side, on worker threads
"""
