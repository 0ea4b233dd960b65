"""Short programs as transformations, for the graph's tests."""

from types import SimpleNamespace

from flinkish.datastream import partitioners as p
from flinkish.datastream import transformations as t


def source(name="numbers", columns=False, fixed=None, **options):
    description = SimpleNamespace(gives_columns=columns, fixed_parallelism=fixed)
    operator = t.SourceOperator(source=description, watermark_strategy=None)
    return t.SourceTransformation(name=name, operator=operator, **options)


def map_(input, name="Map", function=abs, **options):
    return t.OneInputTransformation(name=name, operator=t.MapOperator(function), input=input, **options)


def sink(input, name="out", columns=False, fixed=None, **options):
    description = SimpleNamespace(takes_columns=columns, fixed_parallelism=fixed)
    return t.SinkTransformation(name=name, operator=t.SinkOperator(description), input=input, **options)


def partition(input, partitioner):
    return t.PartitionTransformation(name="Partition", input=input, partitioner=partitioner)


def keyed(input, selector=abs, key_field=None):
    return partition(input, p.KeyGroupPartitioner(selector, key_field=key_field))


def reduce_(input, name="Reduce", selector=abs, **options):
    return t.OneInputTransformation(
        name=name, operator=t.ReduceOperator(max), input=input, key_selectors=(selector,), **options
    )


def union(*inputs):
    return t.UnionTransformation(name="Union", union_inputs=inputs)


def side_output(input, tag):
    return t.SideOutputTransformation(name="SideOutput", input=input, output_tag=tag)


def co_map(one, two, name="CoMap", **options):
    return t.TwoInputTransformation(
        name=name, operator=t.CoMapOperator(abs), input1=one, input2=two, **options
    )
