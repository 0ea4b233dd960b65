from datetime import timedelta
from pathlib import Path

import pytest

from flinkish.common import ConfigOptions, Configuration, ExecutionConfig, RestartStrategies, options
from flinkish.errors import ConfigurationError, InvalidJobError

CONF_FILE = Path(__file__).parents[3] / "conf" / "flinkish-conf.yaml"


def test_the_conf_file_lists_every_option_with_its_default():
    assert CONF_FILE.read_text() == options.conf_file_text()


def test_the_conf_file_reads_back_as_the_defaults():
    conf = Configuration.from_file(CONF_FILE)
    for option in options.ALL_OPTIONS.values():
        assert conf.get(option) == option.default, option.key


def test_an_option_reads_text_and_typed_values_alike():
    for value in ("5 s", 5_000, timedelta(seconds=5)):
        assert options.read({"heartbeat.timeout": value}, options.HEARTBEAT_TIMEOUT) == 5_000
    assert options.read({}, options.MAX_PENDING_BYTES) == 1 << 20
    assert (
        options.read({"taskmanager.network.max-pending-bytes": "64 kb"}, options.MAX_PENDING_BYTES) == 65_536
    )


@pytest.mark.parametrize(
    "key, value",
    [
        ("heartbeat.timeout", "soon"),
        ("parallelism.default", "0"),
        ("parallelism.default", "many"),
        ("pipeline.object-reuse", "perhaps"),
        ("execution.target", "moon"),
    ],
)
def test_a_value_that_an_option_cannot_have_is_refused_by_key(key, value):
    with pytest.raises(ConfigurationError, match=key):
        Configuration({key: value}).get(options.ALL_OPTIONS[key])


def test_a_configuration_is_a_dict_of_text():
    conf = Configuration({"a": 1, "b": True, "c": ["x", "y"], "d": timedelta(seconds=1)})
    assert dict(conf) == {"a": "1", "b": "true", "c": "x;y", "d": "1000 ms"}
    assert "a" in conf and len(conf) == 4 and conf.get("zzz") is None
    del conf["a"]
    assert conf.key_set() == {"b", "c", "d"}


def test_the_typed_getters_of_pyflink_read_what_the_setters_wrote():
    conf = Configuration()
    conf.set_string("s", "x").set_integer("i", 3).set_boolean("b", False).set_float("f", 0.5)
    conf.set_bytearray("raw", bytearray(b"\x00\xff"))
    assert conf.get_string("s", "") == "x"
    assert conf.get_integer("i", 0) == 3
    assert conf.get_boolean("b", True) is False
    assert conf.get_float("f", 0.0) == 0.5
    assert conf.get_bytearray("raw", bytearray()) == b"\x00\xff"
    assert conf.get_integer("absent", 7) == 7
    assert conf.remove_config("s") and not conf.remove_config("s")
    other = Configuration().add_all(conf, "p.")
    assert other.to_dict()["p.i"] == "3"


def test_set_refuses_a_bad_value_at_once_and_none_takes_a_value_back():
    conf = Configuration()
    with pytest.raises(ConfigurationError):
        conf.set(options.PARALLELISM_DEFAULT, -3)
    conf.set(options.HEARTBEAT_TIMEOUT, 4_000)
    assert conf["heartbeat.timeout"] == "4000 ms"
    conf.set(options.HEARTBEAT_TIMEOUT, None)
    assert conf.get(options.HEARTBEAT_TIMEOUT) == 10_000


def test_an_option_of_your_own_is_built_as_in_pyflink():
    option = ConfigOptions.key("my.size").int_type().default_value(4)
    assert Configuration().get(option) == 4
    assert Configuration({"my.size": "9"}).get(option) == 9
    assert ConfigOptions.key("k").string_type().no_default_value().default is None


def test_a_file_line_that_is_no_pair_is_refused_with_its_number(tmp_path):
    path = tmp_path / "c.yaml"
    path.write_text("a: 'x # y'\n# comment\nb: 2 # why\nc: d: e\n")
    with pytest.raises(ConfigurationError, match="line 4"):
        Configuration.from_file(path)


def test_the_environment_variable_names_the_folder_of_the_settings(tmp_path, monkeypatch):
    (tmp_path / "flinkish-conf.yaml").write_text("parallelism.default: 3\n")
    monkeypatch.setenv("FLINKISH_CONF_DIR", str(tmp_path))
    assert Configuration.load_global() == Configuration({"parallelism.default": 3})
    monkeypatch.setenv("FLINKISH_CONF_DIR", str(tmp_path / "nowhere"))
    with pytest.raises(ConfigurationError, match="nowhere"):
        Configuration.load_global()


def test_execution_config_writes_the_configuration():
    conf = Configuration()
    config = ExecutionConfig(conf).set_parallelism(4).set_auto_watermark_interval(timedelta(seconds=1))
    config.enable_object_reuse().set_global_job_parameters({"day": "2013-01-01T00:00"})
    assert conf.to_dict() == {
        "parallelism.default": "4",
        "pipeline.auto-watermark-interval": "1000 ms",
        "pipeline.object-reuse": "true",
        "pipeline.global-job-parameters": "day:2013-01-01T00:00",
    }
    assert config.get_global_job_parameters() == {"day": "2013-01-01T00:00"}


def test_a_parallelism_above_the_max_parallelism_is_refused_with_both_numbers():
    config = ExecutionConfig().set_max_parallelism(8)
    with pytest.raises(InvalidJobError, match="(?s)9.*8"):
        config.set_parallelism(9)
    with pytest.raises(InvalidJobError, match="32768"):
        config.set_max_parallelism(40_000)


def test_restart_strategies_stand_for_settings():
    strategy = RestartStrategies.fixed_delay_restart(3, timedelta(seconds=2))
    conf = Configuration()
    for option, value in strategy.settings().items():
        conf.set(option, value)
    assert conf["restart-strategy.fixed-delay.delay"] == "2000 ms"
    assert strategy == RestartStrategies.fixed_delay_restart(3, 2_000)
    assert strategy != RestartStrategies.no_restart()


def test_a_configuration_shows_as_in_flink_and_reads_each_form_of_a_list():
    conf = Configuration({"k1": "v1", "k2": 1})
    assert str(conf) == "{k1=v1, k2=1}"
    for text in ("a;b", "[a, b]", "- a\n- b", "- 'a'\n- \"b\"\n"):
        assert Configuration.parse_list_value(text) == ["a", "b"]
