"""What is missing on the machine is one message, with the command that mends it."""

from __future__ import annotations

from pathlib import Path

import pytest
from programs import GO, JAVA, program

from penstock.platform.errors import MissingPrerequisitesError
from penstock.platform.prerequisites import Need, check_prerequisites


def test_all_that_is_missing_is_named_at_once(tmp_path: Path) -> None:
    """Each with what it is for, then one command for what the package manager has, and where Go comes from."""
    program(tmp_path / "bin", "apt-get", "true")
    with pytest.raises(MissingPrerequisitesError) as caught:
        check_prerequisites(Need, {"PATH": str(tmp_path / "bin")})
    message = str(caught.value)
    for need in Need:
        assert f"{need.program} ({need.purpose}): is not on PATH" in message
    assert "apt-get install --yes default-jre-headless maven redis-server" in message
    assert "https://go.dev/dl/" in message


def test_without_a_package_manager_the_message_still_says_what_to_do(tmp_path: Path) -> None:
    """It cannot name a command, but it names the programs."""
    with pytest.raises(MissingPrerequisitesError, match="install them and put them on PATH"):
        check_prerequisites({Need.REDIS}, {"PATH": str(tmp_path)})


@pytest.mark.parametrize(
    ("need", "name", "script", "message"),
    [
        (Need.JAVA, "java", "echo 'openjdk version \"11.0.2\"' >&2", "java is version 11"),
        (Need.JAVA, "java", "echo 'java version \"1.8.0_292\"' >&2", "java is version 8"),
        (Need.JAVA, "java", "echo nonsense", "does not tell its version"),
        (Need.GO, "go", "echo go version go1.19.8 linux/amd64", "go is version 1.19"),
    ],
)
def test_a_program_that_is_too_old_is_missing(tmp_path: Path, need: Need, name: str, script: str, message: str) -> None:
    """The message says which version was found."""
    program(tmp_path / "bin", name, script)
    with pytest.raises(MissingPrerequisitesError, match=message):
        check_prerequisites({need}, {"PATH": str(tmp_path / "bin")})


def test_what_is_there_is_found(tmp_path: Path) -> None:
    """JAVA_HOME goes before PATH."""
    program(tmp_path / "bin", "go", GO)
    program(tmp_path / "bin", "java", "exit 1")
    (tmp_path / "jdk").mkdir()
    java = program(tmp_path / "jdk" / "bin", "java", JAVA)
    environ = {"PATH": str(tmp_path / "bin"), "JAVA_HOME": str(tmp_path / "jdk")}
    assert check_prerequisites({Need.JAVA, Need.GO}, environ) == {
        Need.JAVA: java,
        Need.GO: tmp_path / "bin" / "go",
    }
