"""A driver whose test kills it, or what it has started: it says what it does by lines of JSON on stdout.

    python job_to_kill.py PIPE CONFIGURATION     (a path where there is nothing yet; JSON)

One SessionCluster of two slots; a small job; an endless job that the test breaks; a small one after it;
a second endless job, which only the end of this process ends.
"""

import json
import os
import sys
import time

from flinkish.connectors.discarding import DiscardingSink
from flinkish.datastream.functions import MapFunction
from flinkish.errors import FlinkishError
from spark_plugin import session
from spark_plugin.session_cluster import SessionCluster


def say(**facts):
    print(json.dumps(facts), flush=True)


class TellsItsProcess(MapFunction):
    """At the first record."""

    def open(self, runtime_context):
        self.told = False

    def map(self, value):
        if not self.told:
            self.told = True
            with open(pipe, "w") as end:
                end.write(f"{os.getpid()}\n")
        time.sleep(0.01)  # the cores are for the others
        return value

    def close(self):
        print("closed in order", file=sys.stderr)


def run_small(cluster):
    env = cluster.get_execution_environment()
    numbers = env.from_sequence(1, 100).key_by(lambda n: n % 7).map(lambda n: n * n)
    with numbers.execute_and_collect() as results:
        say(sum=sum(results))


def run_endless(cluster):
    env = cluster.get_execution_environment()
    env.from_sequence(0, 2**62).rebalance().map(TellsItsProcess()).sink_to(DiscardingSink())
    client = env.execute_async("endless")
    say(slots=[int(processes.readline()) for _ in range(2)])
    client.wait()


pipe, configuration = sys.argv[1], json.loads(sys.argv[2])
os.mkfifo(pipe)
# For both directions: then nobody waits in open(), and there is no end of it to read.
processes = open(os.open(pipe, os.O_RDWR), buffering=1)
context = session.get_or_create_context(2, configuration)
say(application=context.applicationId)
with SessionCluster(context, slots=2, configuration=configuration) as cluster:
    run_small(cluster)
    try:
        run_endless(cluster)
    except FlinkishError as error:
        say(error=str(error), kind=type(error).__name__)
    run_small(cluster)
    run_endless(cluster)
