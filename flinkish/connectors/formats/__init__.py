"""Records as text and bytes: CSV, JSON and Avro.

The names that PyFlink has are at its paths (``flinkish.datastream.formats``); files of these formats are in
``flinkish.connectors.files``.
"""
