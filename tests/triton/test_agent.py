"""A config.pbtxt that still names Dragonfly's repository agent: Triton refuses the model, and the
remedy that `d7yfs check` prints works.
"""

from __future__ import annotations

import re

import pytest

from tests.mount.mounted import Mounter, run
from tests.triton.conftest import Start
from tests.triton.models import MIB, Models, config, shown, weights_of

pytestmark = [pytest.mark.mount, pytest.mark.store]

WEIGHTS = weights_of(1, MIB)

DRAGONFLY = """\
model_repository_agents
{
  agents [
    {
      name: "dragonfly",
    }
  ]
}
"""
D7Y = """\
model_repository_agents {
  agents [ { name: "d7y" parameters [ { key: "config_path" value: "d7y_config.json" } ] } ]
}
"""


@pytest.mark.parametrize(("block", "agent"), [(DRAGONFLY, "dragonfly"), (D7Y, "d7y")], ids=["dragonfly", "d7y"])
def test_the_failure_and_the_cure(mounter: Mounter, models: Models, start: Start, block: str, agent: str) -> None:
    models.put_model("m", WEIGHTS)
    models.put_model("asking", WEIGHTS)
    models.put("asking/config.pbtxt", config(more=block))
    mounted = mounter.mount(models.url, env=models.bucket.env)
    triton = start(mounted.point, options=["--exit-on-error=false"])
    triton.wait_for("m")
    assert not triton.is_ready("asking")
    assert f"unable to find 'libtritonrepoagent_{agent}.so'" in triton.log()

    checked = run("check", models.url, env=models.bucket.env)
    said = " ".join(checked.stdout.split())
    assert "asking/config.pbtxt: asks for Dragonfly's repository agent" in said
    assert "m/config.pbtxt" not in said.replace("asking/config.pbtxt", "")
    (first, last) = re.findall(r"remove lines (\d+) to (\d+), model_repository_agents with all in it", said)[0]
    triton.stop()

    lines = config(more=block).splitlines(keepends=True)
    models.put("asking/config.pbtxt", "".join(lines[: int(first) - 1] + lines[int(last) :]))
    again = mounter.mount(models.url, env=models.bucket.env)
    cured = start(again.point)
    cured.wait_for("asking")
    assert shown(cured, "asking", WEIGHTS)
    checked = run("check", models.url, env=models.bucket.env)
    assert "none asks for Dragonfly's repository agent" in " ".join(checked.stdout.split())


@pytest.mark.parametrize("block", [DRAGONFLY, D7Y], ids=["dragonfly", "d7y"])
@pytest.mark.parametrize("mode", ["none", "explicit"])
def test_a_mount_that_hides_the_agent(mounter: Mounter, models: Models, start: Start, block: str, mode: str) -> None:
    """For a repository that hosts with the agent use as it is."""
    models.put_model("m", WEIGHTS)
    models.put("m/config.pbtxt", config(more=block))
    mounted = mounter.mount(models.url, "--hide-agents", env=models.bucket.env)
    triton = start(mounted.point, mode=mode)
    if mode == "explicit":
        triton.wait_until(triton.is_live, "the server listens")
        triton.load("m")
    triton.wait_for("m")
    assert shown(triton, "m", WEIGHTS)
    assert "model_repository_agents" not in triton.config("m")
    checked = run("check", "--hide-agents", models.url, env=models.bucket.env)
    assert "none asks for Dragonfly's repository agent" in " ".join(checked.stdout.split())


def test_other_agents_are_still_asked_for(mounter: Mounter, models: Models, start: Start) -> None:
    models.put_model("m", WEIGHTS)
    models.put("m/config.pbtxt", config(more=DRAGONFLY.replace("agents [", 'agents [ { name: "checksum" },')))
    triton = start(
        mounter.mount(models.url, "--hide-agents", env=models.bucket.env).point, options=["--exit-on-error=false"]
    )
    triton.wait_until(triton.is_live, "the server listens")
    assert not triton.is_ready("m")
    assert "unable to find 'libtritonrepoagent_checksum.so'" in triton.log()
    assert "libtritonrepoagent_dragonfly" not in triton.log()
