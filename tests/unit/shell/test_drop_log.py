from flinkish.shell.drop_log import DropLog


def test_a_flood_of_strangers_does_not_flood_the_log(caplog):
    now = [0.0]
    tell = DropLog(lambda: now[0])
    for number in range(500):
        tell(f"127.0.0.1:{number}", "it did not prove the secret")
    assert caplog.text.count("peer dropped") == 10 and "not all are told" in caplog.text
    now[0] = 61.0
    tell("127.0.0.1:9", "it did not prove the secret")
    assert "more peers dropped count=490" in caplog.text and caplog.text.count("peer dropped") == 11
