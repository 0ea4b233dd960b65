"""A program on ``SparkSession.builder.remote("local[4]")``, whose server is then there for other clients.

It prints a JSON object, what its job gave and the URL of the server, and ends with its stdin.
"""

from __future__ import annotations

import json
import os
import sys

# The server takes a free port, and the client asks for it.
os.environ["SPARK_TESTING"] = "1"
os.environ.setdefault("PYSPARK_PYTHON", sys.executable)


def main():
    from pyspark.sql import SparkSession

    from flinkish.datastream import StreamExecutionEnvironment

    spark = SparkSession.builder.remote("local[4]").getOrCreate()
    kind = type(spark).__module__
    # No session is named: the program has one.
    env = StreamExecutionEnvironment.get_execution_environment({"slot.request.timeout": "180 s"})
    env.set_parallelism(2)
    numbers = env.from_sequence(1, 1_000).rebalance().map(lambda number: (number, os.getpid()))
    with numbers.execute_and_collect() as results:
        records = list(results)
    token = os.environ["SPARK_CONNECT_AUTHENTICATE_TOKEN"]
    found = {
        "session": kind,
        "sum": sum(number for number, _ in records),
        "slots": len({pid for _, pid in records}),
        "url": f"sc://{spark.client._builder.endpoint}/;token={token}",
    }
    print(json.dumps(found), flush=True)
    sys.stdin.read()
    spark.stop()


if __name__ == "__main__":
    main()
