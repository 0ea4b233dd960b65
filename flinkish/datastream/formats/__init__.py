"""PyFlink's names of formats: ``csv``, ``json``, ``avro``, ``parquet``, ``orc``."""
