"""Slurm's commands, run without a shell and with an environment of our own."""

import subprocess
from collections.abc import Mapping, Sequence

from tools.launch.errors import LaunchError

_TIMEOUT_S = 60.0
_UNKNOWN_JOB = "Invalid job id specified"


class SlurmCommands:
    """`environment` is all that the commands see, and what sbatch hands on to jobs."""

    def __init__(self, environment: Mapping[str, str], timeout_s: float = _TIMEOUT_S) -> None:
        self._environment = dict(environment)
        self._asking = {**environment, "LC_ALL": "C", "SLURM_TIME_FORMAT": "%s"}
        self._timeout_s = timeout_s

    def run(self, words: Sequence[str], pass_fds: Sequence[int] = ()) -> str:
        """Standard output; raises LaunchError with the command's own words when it fails."""
        return _output(words, self._call(words, pass_fds))

    def find(self, words: Sequence[str]) -> str:
        """As `run`, but empty where Slurm knows no such job any more."""
        result = self._call(words)
        is_unknown = result.returncode and _UNKNOWN_JOB in result.stderr
        return "" if is_unknown else _output(words, result)

    def try_run(self, words: Sequence[str]) -> str:
        """Empty where the command fails: for sacct, which not every cluster can answer."""
        result = self._call(words)
        return "" if result.returncode else result.stdout

    def _call(self, words: Sequence[str], pass_fds: Sequence[int] = ()) -> subprocess.CompletedProcess[str]:
        try:
            return subprocess.run(
                words,
                env=self._environment if words[0] == "sbatch" else self._asking,
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                errors="replace",
                timeout=self._timeout_s,
                pass_fds=pass_fds,
                check=False,
            )
        except FileNotFoundError:
            raise LaunchError(f"{words[0]} is not installed, or not on the launcher's PATH") from None
        except subprocess.TimeoutExpired:
            raise LaunchError(f"{words[0]} did not answer within {self._timeout_s:g} s") from None


def _output(words: Sequence[str], result: subprocess.CompletedProcess[str]) -> str:
    if result.returncode:
        raise LaunchError(f"{words[0]} failed: {_said(result)}")
    return result.stdout


def _said(result: subprocess.CompletedProcess[str]) -> str:
    text = (result.stderr.strip() or result.stdout.strip() or f"exit status {result.returncode}")[-500:]
    return " ".join(text.split())
