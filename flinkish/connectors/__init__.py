"""Sources and sinks, each in a module of its own; ``spi`` is how users write theirs."""
