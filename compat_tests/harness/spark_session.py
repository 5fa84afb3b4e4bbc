"""Spark in a process of its own, with the environment that has pyspark: one session, many jobs."""

import contextlib
import json
import os
import subprocess

from harness import paths

ANSWER_SECONDS = 20


class SparkFailed(Exception):
    """The job raised; the text is the exception's."""


@contextlib.contextmanager
def running_spark(home, python=None, **environment):
    """Gives `spark(job, **options)` -> the job's result; jobs are harness/spark_worker.py's.
    `python`: of another environment, as QUIRE_SPARK_PYTHON says by default; `environment`: more
    variables."""
    home.mkdir()
    python = python or os.environ.get("QUIRE_SPARK_PYTHON")
    if python is None:
        python = paths.needed(paths.cache_dir() / "venv-spark" / "bin" / "python", "spark")
    reading, writing = os.pipe()
    log = (home / "spark.log").open("wb")

    def prepare():
        os.dup2(writing, 3)

    process = subprocess.Popen(
        [str(python), str(paths.COMPAT / "harness" / "spark_worker.py"), str(home)],
        stdin=subprocess.PIPE,
        stdout=log,
        stderr=subprocess.STDOUT,
        cwd=home,
        env={
            **os.environ,
            "SPARK_KAFKA_JARS": str(paths.jars("spark")),
            # Where Spark's Python workers find our packages, and what they run in.
            "PYTHONPATH": str(paths.ROOT),
            "PYSPARK_PYTHON": str(python),
            **environment,
        },
        pass_fds=(3,),
        preexec_fn=prepare,
        text=True,
    )
    os.close(writing)
    answers = os.fdopen(reading)

    def answer():
        line = answers.readline()
        if not line:
            text = (home / "spark.log").read_text(errors="replace")
            raise RuntimeError(f"Spark ended:\n{text[-6000:]}")
        result = json.loads(line)
        if "error" in result:
            raise SparkFailed(result["error"])
        return result["result"]

    def call(job, **options):
        process.stdin.write(json.dumps({"job": job, "options": options}) + "\n")
        process.stdin.flush()
        return answer()

    try:
        assert answer().startswith("4.")
        yield call
        process.stdin.close()
        process.wait(ANSWER_SECONDS)
    finally:
        process.kill()
        process.wait()
        answers.close()
        log.close()
