"""Flink's metric names, as they appear in the REST API and reporters.

Source: Flink's ``org.apache.flink.runtime.metrics.MetricNames``.

Where the time of a subtask goes, in ms per second; the three add up to 1,000:

* ``backPressuredTimeMsPerSecond``: it has input, and an output or its sink has no room, or an asynchronous operator has all
  its calls under way,
* ``idleTimeMsPerSecond``: it has no input,
* ``busyTimeMsPerSecond``: the rest.  User code that sleeps is busy, and so is a subtask that has work left
  and waits while others have the thread of their slot: in Flink it would have a thread of its own and wait
  for a core, which is busy there too.  Input that comes to an idle subtask meanwhile counts from its turn on.

The culprit of a slow pipeline is the task that is busy with ``inPoolUsage`` (share of the credits whose
batches wait in its input) near 1: tasks before it are back-pressured with ``outPoolUsage`` (how full the
fullest of its outputs is) near 1, those behind it are idle.  Where the last task is back-pressured, it is
what its sink writes to; where one with room in its outputs is, what its asynchronous operator calls.
"""

NUM_RECORDS_IN = "numRecordsIn"
NUM_RECORDS_OUT = "numRecordsOut"
NUM_RECORDS_IN_RATE = "numRecordsInPerSecond"
NUM_RECORDS_OUT_RATE = "numRecordsOutPerSecond"
NUM_BYTES_IN = "numBytesIn"
NUM_BYTES_OUT = "numBytesOut"
NUM_BYTES_IN_RATE = "numBytesInPerSecond"
NUM_BYTES_OUT_RATE = "numBytesOutPerSecond"
NUM_BUFFERS_OUT = "numBuffersOut"
NUM_LATE_RECORDS_DROPPED = "numLateRecordsDropped"
NUM_RECORDS_IN_ERRORS = "numRecordsInErrors"
NUM_RECORDS_OUT_ERRORS = "numRecordsOutErrors"
NUM_RECORDS_SEND = "numRecordsSend"
NUM_BYTES_SEND = "numBytesSend"

CURRENT_INPUT_WATERMARK = "currentInputWatermark"
CURRENT_INPUT_1_WATERMARK = "currentInput1Watermark"
CURRENT_INPUT_2_WATERMARK = "currentInput2Watermark"
CURRENT_OUTPUT_WATERMARK = "currentOutputWatermark"
WATERMARK_LAG = "watermarkLag"
WATERMARK_ALIGNMENT_DRIFT = "watermarkAlignmentDrift"
CURRENT_EMIT_EVENT_TIME_LAG = "currentEmitEventTimeLag"
SOURCE_IDLE_TIME = "sourceIdleTime"
LATENCY = "latency"

TASK_BUSY_TIME = "busyTimeMsPerSecond"
TASK_IDLE_TIME = "idleTimeMsPerSecond"
TASK_BACK_PRESSURED_TIME = "backPressuredTimeMsPerSecond"
IS_BACK_PRESSURED = "isBackPressured"
IN_POOL_USAGE = "inPoolUsage"
OUT_POOL_USAGE = "outPoolUsage"

TASK_SLOTS_TOTAL = "taskSlotsTotal"
TASK_SLOTS_AVAILABLE = "taskSlotsAvailable"
NUM_RUNNING_JOBS = "numRunningJobs"
UPTIME = "uptime"
NUM_RESTARTS = "numRestarts"
