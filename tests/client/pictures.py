"""Takes the pictures of the README and docs/page.md: eight agents on the simulated engine, as the page shows them.

    pictures.py FOLDER"""

import os
import sys
import tempfile
import threading

sys.path.insert(0, os.path.join(os.path.dirname(__file__), "..", "..", "bench"))

import browser  # noqa: E402
import page_load  # noqa: E402
from lib import server as servers  # noqa: E402

MOST_BYTES = 150 * 1024


def take(page, folder, name):
    path = os.path.join(folder, name)
    page.picture(path)
    assert os.path.getsize(path) <= MOST_BYTES, (path, os.path.getsize(path))
    print(path, os.path.getsize(path))


def main(folder):
    os.environ.update(servers.NO_DISK)
    command = [servers.hearth_path(), "serve", "--engine", "sim", "-c", "131072", "-np", "6"]
    with servers.Server(command) as server, tempfile.TemporaryDirectory() as place:
        with browser.Browser(place, 1160, 700) as page:
            url, stop = f"http://127.0.0.1:{server.port}", threading.Event()
            threads = page_load.begin(url, turns=20, tokens=12, stop=stop)
            page.open(url + "/")
            page.wait("document.querySelectorAll('.waste tbody tr').length >= 7"
                      " && document.querySelector('.waste tbody tr').innerText.includes('--strip-line')", 110)
            page.wait("document.querySelectorAll('.lane:not(.idle)').length >= 4", 60)
            take(page, folder, "page-now.png")
            page.run("document.querySelector('.waste tbody a[href^=\"#request/\"]').click()")
            page.wait("document.querySelectorAll('mark').length === 2")
            take(page, folder, "page-request.png")
            stop.set()
            for thread in threads:
                thread.join()


main(sys.argv[1])
