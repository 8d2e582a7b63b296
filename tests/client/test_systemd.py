"""contrib/systemd, as systemd reads it: a unit for a box, and drop-ins for Debian's units of the other parts."""

import glob
import os
import re
import shutil
import subprocess

import pytest

from lib import server as servers

FOLDER = os.path.join(servers.REPOSITORY, "contrib", "systemd")
DEBIAN = "/lib/systemd/system"


def verify(folder, unit):
    """What systemd complains of."""
    return subprocess.run(["systemd-analyze", "verify", "--man=no", os.path.join(folder, unit)], text=True, capture_output=True,
                          env={**os.environ, "SYSTEMD_UNIT_PATH": f"{folder}:"}).stderr


@pytest.mark.skipif(not shutil.which("systemd-analyze"), reason="systemd is not installed")
@pytest.mark.parametrize("unit", ["hearth.service", "redis-server.service", "postgresql@15-main.service", "haproxy.service"])
def test_units_are_what_systemd_knows(tmp_path, unit):
    template = re.sub("@[^.]+", "@", unit)
    if unit == "hearth.service":
        with open(os.path.join(FOLDER, unit)) as text:
            (tmp_path / unit).write_text(text.read().replace("/usr/local/bin/hearth", servers.hearth_path()))
    elif os.path.exists(os.path.join(DEBIAN, template)):
        shutil.copy(os.path.join(DEBIAN, template), tmp_path)
        shutil.copytree(os.path.join(FOLDER, template + ".d"), tmp_path / (template + ".d"))
    else:
        pytest.skip(f"{template} is not installed")
    assert verify(tmp_path, unit) == ""
    for path in glob.glob(str(tmp_path / "*.d" / "*.conf")):  # drop-ins are looked at, too
        with open(path, "a") as out:
            out.write("NoSuchThing=1\n")
        assert "NoSuchThing" in verify(tmp_path, unit)
