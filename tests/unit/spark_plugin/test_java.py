import os
import stat

import pytest

from flinkish.errors import JavaNotFoundError
from spark_plugin.java import find_java, install_line, oldest_java, parse_java_version


@pytest.mark.parametrize(
    "os_release, platform, line",
    [
        ('ID=debian\nVERSION_ID="12"', "linux", "sudo apt-get install -y openjdk-17-jre-headless"),
        ("ID=ubuntu\nID_LIKE=debian", "linux", "sudo apt-get install -y openjdk-17-jre-headless"),
        ('ID="linuxmint"\nID_LIKE="ubuntu debian"', "linux", "sudo apt-get install -y openjdk-17-jre-headless"),
        ("ID=fedora", "linux", "sudo dnf install -y java-17-openjdk-headless"),
        ('ID="rocky"\nID_LIKE="rhel centos fedora"', "linux", "sudo dnf install -y java-17-openjdk-headless"),
        ('ID="amzn"\nID_LIKE="fedora"', "linux", "sudo dnf install -y java-17-amazon-corretto-headless"),
        ("ID=alpine", "linux", "apk add openjdk17-jre-headless bash"),
        ('ID="opensuse-leap"\nID_LIKE="suse opensuse"', "linux", "sudo zypper install -y java-17-openjdk-headless"),
        ("ID=arch", "linux", "sudo pacman -S jre17-openjdk-headless"),
    ],
)
def test_each_linux_gets_the_line_of_its_package_manager(os_release, platform, line):
    assert install_line(os_release, platform) == line


def test_a_mac_gets_brew_and_an_unknown_system_gets_words():
    assert install_line("", "darwin").startswith("brew install openjdk@17")
    assert "JAVA_HOME" in install_line("ID=plan9", "linux")


@pytest.mark.parametrize(
    "text, version",
    [
        ('openjdk version "17.0.15" 2025-04-15', 17),
        ('openjdk version "21" 2023-09-19', 21),
        ('java version "1.8.0_391"', 8),
        ("Error: could not find libjava.so", None),
    ],
)
def test_the_version_of_java_is_read_from_old_and_new_forms(text, version):
    assert parse_java_version(text) == version


def fake_java(folder, version_line, exit_code=0):
    (folder / "bin").mkdir(parents=True)
    java = folder / "bin" / "java"
    java.write_text(f"#!/bin/sh\necho '{version_line}' >&2\nexit {exit_code}\n")
    java.chmod(java.stat().st_mode | stat.S_IXUSR)
    return java


def test_java_home_goes_before_path(tmp_path):
    home = fake_java(tmp_path / "home", 'openjdk version "21.0.1"')
    fake_java(tmp_path / "path", 'openjdk version "17.0.1"')
    search = f"{tmp_path}/path/bin{os.pathsep}{os.environ['PATH']}"
    found = find_java({"JAVA_HOME": str(tmp_path / "home"), "PATH": search})
    assert (found.path, found.version) == (str(home), 21)
    assert find_java({"PATH": search}).version == 17


def test_no_java_is_refused_with_the_line_that_installs_it(tmp_path):
    with pytest.raises(JavaNotFoundError) as caught:
        find_java({"PATH": str(tmp_path)})
    assert "PATH has no java" in caught.value.why
    assert caught.value.do


def test_a_java_home_without_java_is_named(tmp_path):
    with pytest.raises(JavaNotFoundError) as caught:
        find_java({"JAVA_HOME": str(tmp_path), "PATH": os.environ["PATH"]})
    assert str(tmp_path / "bin" / "java") in caught.value.why


def test_an_old_java_is_refused_with_both_versions(tmp_path):
    fake_java(tmp_path, 'java version "1.7.0_80"')
    with pytest.raises(JavaNotFoundError) as caught:
        find_java({"JAVA_HOME": str(tmp_path)})
    assert caught.value.why == f"it is Java 7, this Spark needs {oldest_java()} or newer"


def test_a_java_that_does_not_run_is_told_with_its_own_words(tmp_path):
    fake_java(tmp_path, "error while loading shared libraries", exit_code=127)
    with pytest.raises(JavaNotFoundError) as caught:
        find_java({"JAVA_HOME": str(tmp_path)})
    assert "shared libraries" in caught.value.why
