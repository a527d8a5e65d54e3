"""JupyterLab in a browser: the explore notebook runs, its cards and plots are seen, and h5web opens the store.

Skipped without Chromium, JupyterLab or websocket-client. With H5STORE_SCREENSHOTS=FOLDER the pictures are kept there.
"""

from __future__ import annotations

import importlib.util
import json
import os
import shutil
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parent.parent
CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
# What hangs out of the output area, and pictures that did not load, among the cards.
CUT = """[...document.querySelectorAll('.jp-OutputArea-output .h5s')].filter(card => {
    const box = card.closest('.jp-OutputArea-output').getBoundingClientRect();
    return [...card.querySelectorAll('img, svg, td, th, b')].some(e => e.getBoundingClientRect().right > box.right + 1)
        || [...card.querySelectorAll('img')].some(e => !e.complete || !e.naturalWidth);
}).length"""
# Contrast of the text of a card to what is behind it, by the luminances of WCAG 2.
CONTRAST = """(() => {
    const light = c => { const [r, g, b] = c.match(/[0-9.]+/g).map(Number).map(v => v / 255).map(
        v => v <= 0.03928 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4); return 0.2126 * r + 0.7152 * g + 0.0722 * b; };
    const card = document.querySelector('.jp-OutputArea-output .h5s');
    let behind = card; let colour = '';
    while (behind && (!colour || colour === 'rgba(0, 0, 0, 0)')) {
        behind = behind.parentElement; colour = getComputedStyle(behind).backgroundColor; }
    const [a, b] = [light(getComputedStyle(card).color), light(colour)];
    return (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
})()"""

PANEL = "[...window.jupyterapp.shell.widgets('main')].find(w => w.sessionContext && w.content.widgets)"

pytestmark = [
    pytest.mark.slow, pytest.mark.timeout(500),
    pytest.mark.skipif(CHROMIUM is None, reason="there is no Chromium"),
    *(pytest.mark.skipif(importlib.util.find_spec(name) is None, reason=f"{name} is not installed")
      for name in ("jupyterlab", "websocket", "ipykernel", "matplotlib", "pandas", "sklearn", "nbformat")),
]


def driver() -> Any:
    """The module beside this one."""
    spec = importlib.util.spec_from_file_location("browser", Path(__file__).with_name("browser.py"))
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@contextmanager
def lab(folder: Path) -> Iterator[str]:
    """A JupyterLab on `folder`; gives its address. Nothing of the user's own settings is read or written."""
    home = folder.parent / "home"
    env = {**os.environ, "HOME": str(home), "JUPYTER_CONFIG_DIR": str(home / "config"),
           "JUPYTER_DATA_DIR": str(home / "data"), "JUPYTER_RUNTIME_DIR": str(home / "runtime"),
           "IPYTHONDIR": str(home / "ipython"), "JUPYTERLAB_SETTINGS_DIR": str(home / "settings"),
           "MPLBACKEND": "module://matplotlib_inline.backend_inline",
           "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '')}"}
    news = home / "settings" / "@jupyterlab" / "apputils-extension" / "notification.jupyterlab-settings"
    news.parent.mkdir(parents=True)
    news.write_text('{"fetchNews": "false", "checkForUpdates": false}')
    log = (folder.parent / "lab.log").open("w")
    process = subprocess.Popen(
        [sys.executable, "-m", "jupyterlab", "--no-browser", "--allow-root", "--port=0", "--ip=127.0.0.1",
         "--IdentityProvider.token=", "--ServerApp.disable_check_xsrf=True", f"--ServerApp.root_dir={folder}",
         "--LabApp.extension_manager=readonly", "--LabApp.expose_app_in_browser=True",
         "--ServerApp.terminals_enabled=False"],
        cwd=folder, env=env, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
    try:
        yield address(process, home / "runtime")
    finally:
        process.terminate()
        try:
            process.wait(30)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait(30)
        log.close()


def address(process: subprocess.Popen, runtime: Path) -> str:
    """Where the server listens, once it answers."""
    end = time.monotonic() + 90
    while time.monotonic() < end and process.poll() is None:
        for told in runtime.glob("jpserver-*.json"):
            try:
                url = json.loads(told.read_text())["url"]
                urllib.request.urlopen(f"{url}api/status", timeout=10).close()
                return str(url)
            except (OSError, ValueError, KeyError):
                pass
        time.sleep(0.2)
    raise RuntimeError("JupyterLab did not start")


def run_all(page: Any) -> None:
    """Run the open notebook from its first cell to its last."""
    page.wait("window.jupyterapp && window.jupyterapp.restored.then(() => true)", 120)
    page.wait("document.querySelectorAll('.jp-Notebook .jp-Cell').length > 10", 90)
    # A headless window has no focus, so nothing is current until it is activated.
    page.run(f"window.jupyterapp.shell.activateById({PANEL}.id) || true")
    page.wait(f"{PANEL}.sessionContext.ready.then(() => true)", 90)
    page.run("window.jupyterapp.commands.execute('notebook:run-all-cells').then(() => true)")


def theme(page: Any, name: str) -> None:
    page.run(f"window.jupyterapp.commands.execute('apputils:change-theme', {{theme: '{name}'}}).then(() => true)")
    dark = "false" if "Dark" in name else "true"
    page.wait(f"document.body.dataset.jpThemeLight === '{dark}'", 60)
    time.sleep(1)


def show(page: Any, selector: str, number: int) -> None:
    """Scroll an element of the notebook to the top."""
    page.wait(f"document.querySelectorAll({selector!r}).length > {number}", 60)
    page.run(f"document.querySelectorAll({selector!r})[{number}].scrollIntoView({{block: 'start'}}) || true")
    time.sleep(1)


def test_the_explore_notebook_in_jupyterlab(tmp_path: Path) -> None:
    kept = Path(os.environ.get("H5STORE_SCREENSHOTS") or tmp_path / "shots")
    kept.mkdir(parents=True, exist_ok=True)
    folder = tmp_path / "lab"
    folder.mkdir()
    shutil.copy(ROOT / "notebooks" / "03_explore.ipynb", folder)
    with lab(folder) as url, driver().browser(CHROMIUM, tmp_path) as page:
        page.open(f"{url}lab/tree/03_explore.ipynb?reset", 1280, 900)
        run_all(page)
        page.wait("document.querySelectorAll('.jp-OutputArea-output .h5s').length >= 4", 150)
        page.wait(f"{PANEL}.content.widgets.every(c => c.model.type !== 'code' || c.model.executionCount)", 150)
        page.run("window.jupyterapp.commands.execute('application:toggle-left-area').then(() => true)")
        assert page.run("document.querySelectorAll('[data-mime-type=\"application/vnd.jupyter.stderr\"]').length") == 0
        assert page.run("document.querySelectorAll('.jp-OutputArea-output img[src^=\"data:image/png\"]').length") >= 10
        for look in ("JupyterLab Light", "JupyterLab Dark"):
            theme(page, look)
            for width in (1280, 800):
                page.size(width, 900)
                time.sleep(1)
                assert page.run(CUT) == 0, (look, width)
                assert page.run(CONTRAST) > 7, look
                for i, what in enumerate(("digits", "prices", "field", "loader", "stats")):
                    show(page, ".jp-OutputArea-output .h5s", i)
                    page.screenshot(kept / f"{what}-{width}-{look.split()[1].lower()}.png")
                for i in (0, 3, 4, 6):
                    show(page, ".jp-RenderedImage", i)
                    page.screenshot(kept / f"plot{i}-{width}-{look.split()[1].lower()}.png")
        if importlib.util.find_spec("jupyterlab_h5web") is not None:
            opened_in_h5web(page, kept)


def opened_in_h5web(page: Any, kept: Path) -> None:
    """The same store, opened by an HDF5 viewer that knows nothing of h5store."""
    theme(page, "JupyterLab Light")
    page.size(1280, 900)
    page.run("window.jupyterapp.commands.execute('filebrowser:activate').then(() => true)")
    item = "[...document.querySelectorAll('.jp-DirListing-item')].find(e => e.innerText.includes('digits.h5'))"
    page.wait(f"!!{item}", 60)
    time.sleep(1)
    page.double_click(item)
    page.wait("document.body.innerText.includes('features') && document.body.innerText.includes('labels')", 60)
    click = """(name => { const all = [...document.querySelectorAll('[role=treeitem], button')];
        const hit = all.find(e => e.innerText.trim() === name); if (hit) hit.click(); return !!hit; })"""
    for name in ("features", "image"):
        page.wait(f"{click}('{name}')", 60)
        time.sleep(1)
    page.wait("document.body.innerText.includes('Heatmap') || document.body.innerText.includes('Matrix')", 60)
    time.sleep(3)
    page.screenshot(kept / "h5web.png")
    assert not page.run("document.body.innerText.includes('Error while')")
