"""Numbers and names that several parts share."""

MAX_LONG_VALUE = 2**63 - 1
MIN_LONG_VALUE = -(2**63)

#: Name that stands for the main output where outputs are told apart by name.
DEFAULT_OUTPUT_TAG = "default"

#: Flink's name of the state that holds what is in a window.
WINDOW_STATE_NAME = "window-contents"
