#!/usr/bin/env python3
"""Checks the console's page in a real browser.

    tests/console/browser.py [--pictures DIRECTORY] [--only NAME,...] COMMAND [ARGUMENT...]

COMMAND is the example `console` with `--stall`: a program that prints the console's address, stalls now and then, and takes the
options `--listen`, `--tasks` and `--token`. The script starts it, opens the page in a headless Chromium (found in PATH, or named by
CHROMIUM) and operates it with mouse and keyboard. It prints one line per check and exits with 1 if a check failed.

What needs hostile names or a lost connection uses the same page with snapshots made here (`Imitation`).
Nothing depends on the speed of the machine: each check waits for a state. Durations are printed, not judged, except for gross excess.
"""

import argparse
import http.server
import json
import os
import queue
import re
import signal
import socketserver
import subprocess
import sys
import threading
import time
import urllib.request

sys.dont_write_bytecode = True
sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from devtools import Browser, Failure  # noqa: E402

MANY = 10_000
HOSTILE = ["<img src=x onerror=alert(1)>", "</script><script>alert(2)</script>", "x" * 4000, "\u202eoverride", "مهمة القراءة",
           "\"><svg onload=alert(3)>", "\u0000\u001b[31mred"]
# Notes when each stall was first shown. It runs in the page before the page's own script.
WITNESS = """
window.seen = {}; window.alarms = [];
new MutationObserver(() => {
  for (const node of document.querySelectorAll('#stalls [data-stall]')) seen[node.dataset.stall] ??= Date.now();
  const alarm = document.querySelector('#alarm'), said = document.querySelector('#alert');
  if (alarm && !alarm.hidden && said.textContent && alarms.at(-1) !== said.textContent) alarms.push(said.textContent);
}).observe(document, { subtree: true, childList: true, attributes: true, attributeFilter: ['data-stall', 'hidden'] });
"""


class Program:
    """The inspected program."""

    def __init__(self, command, *more):
        self.command = command
        self.process = subprocess.Popen([*command, "--listen", "127.0.0.1:0", *more], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                                        errors="replace", start_new_session=True)
        lines = queue.Queue()
        self.output = []

        def read():
            for line in self.process.stdout:
                self.output.append(line)
                lines.put(line)
            lines.put(None)

        threading.Thread(target=read, daemon=True).start()
        end = time.monotonic() + 60
        while True:
            try:
                line = lines.get(timeout=max(0.1, end - time.monotonic()))
            except queue.Empty:
                line = None
            if line is None:
                self.stop()
                raise Failure("the program printed no address of a console:\n" + "".join(self.output))
            found = re.search(r"http://[\w.\[\]:-]+:\d+", line)
            if found:
                self.url = found.group(0) + "/"
                return

    def snapshot(self):
        with urllib.request.urlopen(self.url + "tasks.json", timeout=30) as reply:
            return json.load(reply)

    def stop(self):
        if self.process.poll() is None:
            os.killpg(self.process.pid, signal.SIGTERM)
            try:
                self.process.wait(10)
            except subprocess.TimeoutExpired:
                os.killpg(self.process.pid, signal.SIGKILL)
                self.process.wait()


class Imitation(socketserver.ThreadingMixIn, http.server.HTTPServer):
    """Serves the program's own page with its own security headers, but snapshots made here."""

    daemon_threads = True

    def __init__(self, origin, template):
        self.origin, self.template, self.refuse, self.stop_streams = origin, template, False, threading.Event()
        super().__init__(("127.0.0.1", 0), ImitationHandler)
        self.url = f"http://127.0.0.1:{self.server_address[1]}/"
        threading.Thread(target=self.serve_forever, daemon=True).start()

    def snapshot(self, number):
        loop = dict(self.template["loops"][0])
        names = HOSTILE + ["worker"] * (MANY - len(HOSTILE))
        loop["tasks"] = [
            {"id": i + 1, "name": f"{name} {i}" if name == "worker" else name, "at": f"src/worker.rs:{i % 900 + 1}:9", "state": "waiting",
             "waits": [f"read on descriptor {i + 10}"], "since_s": i / 1000, "polls": i * number, "busy_s": i * number * 1e-7,
             "longest_s": i * 1e-7, "parent": None if i < 100 else i % 100 + 1}
            for i, name in enumerate(names)]
        loop.update(tasks_total=MANY, tasks_shown=MANY, stalls=[], state="waiting", snapshot_age_s=0.0)
        loop["counters"] = dict(loop["counters"], tasks=MANY)
        now = int(time.time() * 1000)
        return dict(self.template, at_ms=now, uptime_s=self.template["uptime_s"] + number, loops=[loop])

    def handle_error(self, request, client_address):
        pass


class ImitationHandler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *_):
        pass

    def do_GET(self):
        path = self.path.split("?")[0]
        self.close_connection = True
        if path == "/":
            with urllib.request.urlopen(self.server.origin, timeout=30) as page:
                body = page.read()
                self.send_response(200)
                for name in ("Content-Type", "Content-Security-Policy", "X-Content-Type-Options", "Cross-Origin-Resource-Policy"):
                    if page.headers[name]:
                        self.send_header(name, page.headers[name])
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)
        elif path == "/events" and not self.server.refuse:
            self.send_response(200)
            self.send_header("Content-Type", "text/event-stream")
            self.send_header("Connection", "close")
            self.end_headers()
            for number in range(1, 1000):
                data = json.dumps(self.server.snapshot(number), separators=(",", ":"))
                self.wfile.write(f"event: snapshot\ndata: {data}\n\n".encode())
                if self.server.stop_streams.wait(0.5):
                    break
        else:
            self.send_error(503 if path == "/events" else 404)


def check(condition, message):
    if not condition:
        raise Failure(message)


def load(browser, url):
    browser.open(url)
    browser.wait("a first snapshot is shown", "+document.body.dataset.snapshot > 1 && document.querySelector('.row:not([hidden])') !== null")


def fresh(browser, number=2):
    """Waits for further snapshots to be drawn."""
    start = browser.eval("+document.body.dataset.snapshot")
    browser.wait(f"{number} more snapshots", f"+document.body.dataset.snapshot >= {start + number}")


def frame(browser):
    browser.eval("new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(() => done(1))))")


def column(browser, name):
    """The texts of a column in the order of the rows."""
    return browser.eval("[...document.querySelectorAll('.row:not([hidden])')].sort((a, b) => a.ariaRowIndex - b.ariaRowIndex)"
                        f".map((r) => r.querySelector('.{name}').textContent)")


def set_filter(browser, value):
    browser.eval("document.activeElement.blur()")
    browser.key("/")
    check(browser.eval("document.activeElement.id") == "filter", "`/` does not focus the filter")
    browser.eval("document.activeElement.select()")
    if value:
        browser.type(value)
    else:
        browser.eval("document.activeElement.value = ''; document.activeElement.dispatchEvent(new Event('input'))")
    frame(browser)


def number(cell):
    """The value behind a formatted count, rate or duration."""
    match = re.match(r"(<? ?[\d.,]+)\s*(\S*)", cell)
    if not match:
        return 0.0
    scale = {"ns": 1e-9, "µs": 1e-6, "ms": 1e-3, "M": 1e6, "G": 1e9, "k": 1e3, "min": 60, "h": 3600}.get(match.group(2), 1)
    return float(match.group(1).lstrip("< ").replace(",", "")) * scale


def ordered(values, down):
    return all((a >= b) if down else (a <= b) for a, b in zip(values, values[1:]))


# ---- Checks against the program ----

def check_tasks(browser, program, _):
    names = [{t["name"] for loop in program.snapshot()["loops"] for t in loop["tasks"] if t["name"]} for _ in range(2)]
    lasting = sorted(name for name in names[0] & names[1] if name.isprintable())[:12]
    check(lasting, "the program has no task with a name")
    for name in lasting:
        set_filter(browser, name)
        browser.wait(f"the task {name!r} is shown",
                     f"[...document.querySelectorAll('.row:not([hidden]) .name')].some((n) => n.textContent.startsWith({json.dumps(name)}))")
    set_filter(browser, "")
    header = browser.eval("document.querySelector('header').innerText")
    check(program.snapshot()["program"] in header and "Descriptors" in header and "Live" in header, f"unexpected header: {header!r}")
    cards = browser.eval("[...document.querySelectorAll('.loop')].map((n) => n.innerText)")
    loops = program.snapshot()["loops"]
    check(len(cards) == len(loops) and all(l["driver"] in c for l, c in zip(loops, cards)), f"cards do not match the loops: {cards!r}")
    return f"{len(lasting)} named tasks found: {', '.join(lasting)}; {len(loops)} loop(s)"


def stalls(program):
    return {f"{loop['id']}:{s['id']}": s for loop in program.snapshot()["loops"] for s in loop["stalls"]}


def check_stall(browser, program, _):
    opened = browser.eval("performance.timeOrigin")
    delay, key, stall = None, None, None
    end = time.monotonic() + 120
    while delay is None:
        seen, known = browser.eval("window.seen"), stalls(program)
        # The page may have shown the oldest stalls before a new one began: only stalls that began later are timed.
        for key in seen:
            if key in known and known[key]["task"]:
                stall = (key, known[key])
                if known[key]["began_ms"] > opened:
                    delay = seen[key] - known[key]["began_ms"]
                    break
        if time.monotonic() > end:
            check(stall, "no stall appeared within 120 s")
            break
        time.sleep(0.1)
    key, stall = stall
    row = f"document.querySelector('#stalls [data-stall=\"{key}\"]')"
    shown = browser.wait("the stall is still listed", f"{row} && {row}.innerText")
    at = stall["task"]["at"]
    check(os.path.basename(at) in shown, f"the stall does not show its culprit's location {at}: {shown!r}")
    browser.wait("the stall was announced", "window.alarms.length > 0")
    said = browser.eval("window.alarms[0]")
    browser.click(f"#stalls [data-stall='{key}']")
    browser.wait("details of the stall open", "!document.querySelector('#pane').hidden && document.querySelector('#pane-title').textContent.startsWith('Stall of')")
    # The stack is read from the program's debug information, which takes a while the first time.
    browser.wait("the details name the culprit's location", f"document.querySelector('#pane').innerText.includes({json.dumps(at)})")
    frames = 0
    if sys.platform == "linux":
        frames = browser.wait("a stack is shown", "document.querySelectorAll('.stack li').length", 60)
    browser.key("Escape")
    frame(browser)
    check(browser.eval("document.querySelector('#pane').hidden"), "Escape does not close the details")
    # The same details through the red mark of the timeline.
    for _ in range(40):
        spot = browser.eval(TIMELINE_SPOT)
        if spot:
            break
        time.sleep(0.5)
    check(spot, "no red mark of a stall in any timeline")
    browser.hover(*spot)
    frame(browser)
    hint = browser.eval("document.querySelector('#tip').hidden ? '' : document.querySelector('#tip').textContent")
    check("stall of" in hint, f"the timeline's hint does not name the stall: {hint!r}")
    browser.click_at(*spot)
    browser.wait("a click on the timeline opens the stall", "document.querySelector('#pane-title').textContent.startsWith('Stall of') && !document.querySelector('#pane').hidden")
    browser.key("Escape")
    browser.hover(5, 5)
    when = "of a stall that began before the page was opened" if delay is None else f"{delay:.0f} ms after the stall began"
    return f"shown {when}, culprit at {at}, {frames} frames; announced: {said}"


# The middle of a red triangle above a timeline, found by its color.
TIMELINE_SPOT = """(() => {
  for (const view of document.querySelectorAll('.timeline')) {
    view.scrollIntoView({ block: 'nearest' });
    const ratio = view.width / view.clientWidth, row = view.getContext('2d').getImageData(0, Math.round(2 * ratio), view.width, 1).data;
    for (let x = view.width - 1; x >= 0; x--) if (row[4 * x + 3] > 128 && row[4 * x] > 190 && row[4 * x + 1] < 120) {
      const box = view.getBoundingClientRect();
      return [box.x + x / ratio - 2, box.y + 40];
    }
  }
  return null;
})()"""


def check_filter(browser, program, _):
    total = len(column(browser, "name"))
    word = next(t["name"] for l in program.snapshot()["loops"] for t in l["tasks"] if t["name"])
    set_filter(browser, word.upper())
    names = browser.eval("[...document.querySelectorAll('.row:not([hidden])')].map((r) => r.textContent + r.querySelector('.loc').title)")
    check(names and all(word.lower() in n.lower() for n in names), f"filter {word!r} shows {names}")
    set_filter(browser, "no task has this name")
    check(browser.eval("!document.querySelector('#empty').hidden") and not column(browser, "name"), "a filter without matches shows rows")
    set_filter(browser, "")
    browser.wait("all rows return", f"document.querySelectorAll('.row:not([hidden])').length >= Math.min(2, {total})")
    return f"{len(names)} of {total} rows match {word!r}"


def check_sort(browser, *_):
    browser.key("Escape")
    for key, cell in (("polls", "polls"), ("longest", "long"), ("busy", "bt"), ("name", "name")):
        for turn in (0, 1):
            browser.click(f"[data-sort={key}]")
            frame(browser)
            order = browser.eval(f"document.querySelector('[data-sort={key}]').parentNode.ariaSort")
            values = column(browser, cell)
            # Numbers in names are in the order of their values.
            values = [re.sub(r"\d+", lambda n: n.group().zfill(9), v.lower()) for v in values] if key == "name" else [number(v) for v in values]
            check(order in ("ascending", "descending"), f"no order shown for {key}")
            check(ordered(values, order == "descending"), f"not sorted by {key}, {order}: {values}")
    return "polls, longest poll, busy time and name, both ways"


def check_pause(browser, *_):
    browser.send("Network.enable")
    browser.key("p")
    frame(browser)
    check(browser.eval("document.querySelector('#link-text').textContent") == "Paused", "`p` does not pause")
    before, rows = browser.eval("document.body.dataset.snapshot"), column(browser, "polls")
    browser.events.clear()
    end = time.monotonic() + 30
    while browser.events["Network.eventSourceMessageReceived"] < 3:
        check(time.monotonic() < end, "no snapshots arrive while paused")
        time.sleep(0.05)
    check(browser.eval("document.body.dataset.snapshot") == before and column(browser, "polls") == rows, "the page changes while paused")
    browser.key("p")
    fresh(browser)
    check(browser.eval("document.querySelector('#link-text').textContent") == "Live", "`p` does not resume")
    return "3 snapshots arrived while paused and changed nothing; resumed"


def check_keyboard(browser, *_):
    set_filter(browser, "")
    browser.key("ArrowDown")
    check(browser.eval("document.activeElement.id") == "grid", "ArrowDown in the filter does not enter the table")
    current = "document.getElementById(document.querySelector('#grid').getAttribute('aria-activedescendant'))"
    browser.key("p")  # the order must not change under the test
    rows = browser.eval("document.querySelectorAll('.row:not([hidden])').length")
    first = browser.eval(f"{current}.ariaRowIndex")
    if rows > 1:
        browser.key("ArrowDown")
        check(int(browser.eval(f"{current}.ariaRowIndex")) == int(first) + 1, "ArrowDown does not move")
        browser.key("ArrowUp")
        check(browser.eval(f"{current}.ariaRowIndex") == first, "ArrowUp does not move back")
        browser.key("End")
        check(browser.eval(f"{current}.ariaRowIndex == +document.querySelector('#grid').ariaRowCount"), "End does not reach the last row")
        browser.key("Home")
    browser.key("p")
    browser.key("?")
    check(browser.eval("document.querySelector('#help').open"), "`?` does not open the help")
    browser.key("Escape")
    frame(browser)
    check(not browser.eval("document.querySelector('#help').open"), "Escape does not close the help")
    return "/, arrows, Home, End, p, ? and Escape"


def check_follow(browser, program, _):
    word = next(t["name"] for l in program.snapshot()["loops"] for t in l["tasks"] if t["name"])
    set_filter(browser, word)
    browser.key("p")  # typed into the filter, not a shortcut
    check(browser.eval("document.querySelector('#filter').value") == word + "p", "a shortcut acts while the filter is edited")
    set_filter(browser, word)
    browser.key("Enter")
    name, at = browser.eval("(() => { const r = document.getElementById(document.querySelector('#grid').getAttribute('aria-activedescendant'));"
                            "return [r.querySelector('.name').textContent, r.querySelector('.loc').title]; })()")
    browser.key("Enter")
    browser.wait("the details of the task open", f"!document.querySelector('#pane').hidden && document.querySelector('#pane-title').textContent === {json.dumps(name)}")
    check(at in browser.eval("document.querySelector('#pane').innerText"), "the details lack the location")
    fresh(browser, 3)
    drawn = browser.eval("[...document.querySelectorAll('#pane .spark')].map((v) => v.getContext('2d').getImageData(0, 0, v.width, v.height).data.some((x) => x))")
    check(drawn == [True, True], f"empty sparklines: {drawn}")
    check(browser.eval("document.querySelectorAll('.row.followed').length") == 1, "the followed row is not marked")
    browser.key("Escape")
    frame(browser)
    check(browser.eval("document.querySelector('#pane').hidden"), "Escape does not close the details")
    set_filter(browser, "")
    browser.key("Escape")
    return f"{name!r} with both sparklines"


def check_tree(browser, *_):
    browser.eval("document.querySelector('#grid').focus()")
    browser.key("t")
    frame(browser)
    check(browser.eval("document.querySelector('#grid').role") == "treegrid", "`t` does not show the tree")
    levels = browser.eval("[...document.querySelectorAll('.row:not([hidden])')].map((r) => +r.ariaLevel)")
    check(max(levels) > 1, f"the tree has no second level: {levels}")
    browser.key("Home")
    count = "+document.querySelector('#grid').ariaRowCount - 1"
    position = browser.eval("[...document.querySelectorAll('.row:not([hidden])')].sort((a, b) => a.ariaRowIndex - b.ariaRowIndex).findIndex((r) => r.ariaExpanded)")
    for _ in range(position):
        browser.key("ArrowDown")
    expanded = "document.getElementById(document.querySelector('#grid').getAttribute('aria-activedescendant')).ariaExpanded"
    before = browser.eval(count)
    browser.key("ArrowLeft")
    check(browser.eval(expanded) == "false", "ArrowLeft does not collapse")
    collapsed = browser.eval(count)
    check(collapsed < before, f"{before} rows remain {collapsed} after collapsing")
    browser.key("ArrowRight")
    check(browser.eval(expanded) == "true", "ArrowRight does not expand")
    browser.key("t")
    frame(browser)
    check(browser.eval("document.querySelector('#grid').role") == "grid", "`t` does not return to the table")
    return f"levels up to {max(levels)}; {before} rows, {collapsed} after collapsing"


CONTRAST = """(() => {
  const rgb = (s) => { const m = s.match(/[\\d.]+/g).map(Number); return [m[0], m[1], m[2], m.length > 3 ? m[3] : 1]; };
  const light = ([r, g, b]) => [r, g, b].map((v) => (v /= 255) <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4)
    .reduce((sum, v, i) => sum + v * [0.2126, 0.7152, 0.0722][i], 0);
  const worst = [99, ''];
  for (const node of document.querySelectorAll('body *')) {
    if (!node.checkVisibility() || ![...node.childNodes].some((n) => n.nodeType === 3 && n.data.trim()) || node.closest('.sr, canvas, noscript, .skip')) continue;
    let behind = [255, 255, 255, 0];
    for (let up = node; up && behind[3] < 1; up = up.parentElement) behind = rgb(getComputedStyle(up).backgroundColor);
    const a = light(rgb(getComputedStyle(node).color)), b = light(behind), ratio = (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
    if (ratio < worst[0]) { worst[0] = ratio; worst[1] = node.tagName + '.' + node.className + ' ' + node.textContent.slice(0, 40); }
  }
  return worst;
})()"""


def check_theme(browser, program, pictures):
    browser.eval("localStorage.removeItem('windlass.theme')")
    contrasts = []
    for scheme in ("light", "dark"):
        browser.scheme(scheme)
        load(browser, program.url)
        own = browser.eval("getComputedStyle(document.body).backgroundColor")
        ratio, where = browser.eval(CONTRAST)
        check(ratio >= 4.5, f"contrast {ratio:.2f} in the {scheme} theme: {where}")
        contrasts.append(f"{scheme} {ratio:.1f}")
        browser.click("#theme")
        frame(browser)
        other = browser.eval("getComputedStyle(document.body).backgroundColor")
        check(other != own, f"the theme button does not leave the {scheme} theme")
        load(browser, program.url)
        check(browser.eval("getComputedStyle(document.body).backgroundColor") == other, "the chosen theme is not remembered")
        browser.click("#theme")
        browser.click("#theme")
        frame(browser)
        check(browser.eval("localStorage.getItem('windlass.theme')") is None, "the theme does not return to the system's")
    if pictures:
        for scheme in ("light", "dark"):
            browser.scheme(scheme)
            fresh(browser)
            browser.screenshot(os.path.join(pictures, f"console-{scheme}.png"))
    return "follows the system, toggles, is remembered; lowest contrast: " + ", ".join(contrasts)


def check_phone(browser, program, pictures):
    browser.resize(360, 740, phone=True)
    load(browser, program.url)
    fresh(browser)
    width = browser.eval("Math.max(document.documentElement.scrollWidth, document.body.scrollWidth)")
    check(width <= 360, f"the page is {width} px wide on a phone of 360 px")
    outside = browser.eval("[...document.querySelectorAll('body *')].filter((n) => n.checkVisibility() && !n.closest('.sr, .skip') && n.getBoundingClientRect().right > 361)"
                           ".map((n) => n.tagName + '.' + n.className)")
    check(not outside, f"outside of the screen: {outside[:5]}")
    browser.click(".row:not([hidden]) .name")
    browser.wait("a tap follows the task", "!document.querySelector('#pane').hidden")
    check(browser.eval("document.documentElement.scrollWidth") <= 360, "the details overflow a phone")
    if pictures:
        browser.screenshot(os.path.join(pictures, "phone-details.png"))
    browser.click("#pane-close")
    frame(browser)
    check(browser.eval("document.querySelector('#pane').hidden"), "the close button does not close the details")
    if pictures:
        for scheme in ("light", "dark"):
            browser.scheme(scheme)
            fresh(browser)
            browser.screenshot(os.path.join(pictures, f"phone-{scheme}.png"), whole=True)
    browser.resize(1280, 1000)
    return f"{width} px wide at 360 px, tasks can be followed"


# ---- Checks with snapshots made here ----

def check_part(browser, program, _):
    """The first 500 of many tasks: what to sort by and to filter is the server's work."""
    program = Program(program.command, "--tasks", str(MANY))
    try:
        load(browser, program.url)
        browser.wait("the page says that it has a part", "document.querySelector('#tasks-note').textContent.includes('500 received')")
        last = f"session {MANY - 1}"
        set_filter(browser, last)
        browser.wait("a task beyond the part is found", f"[...document.querySelectorAll('.row:not([hidden]) .name')].map((n) => n.textContent).join() === '{last}'")
        browser.key("Enter")
        browser.key("Enter")
        set_filter(browser, "")
        # Now only because it is followed.
        browser.wait("the filter is gone", "document.querySelector('#tasks-note').textContent.includes('received') && document.querySelectorAll('.row:not([hidden])').length > 5")
        fresh(browser, 3)
        check(browser.eval("document.querySelector('#pane .pill').textContent") == "waiting", "a followed task beyond the part is lost")
        browser.key("Escape")
        browser.key("Escape")
        set_filter(browser, "")
        browser.click("[data-sort=id], [data-sort=polls]")
        fresh(browser, 3)
        polls = [number(v) for v in column(browser, "polls")]
        check(ordered(polls, browser.eval("document.querySelector('[data-sort=polls]').parentNode.ariaSort") == "descending"), f"not sorted: {polls}")
        browser.eval("localStorage.setItem('windlass.limit', '10000')")
        load(browser, program.url)
        browser.wait("all tasks are fetched", f"+document.querySelector('#grid').ariaRowCount > {MANY}", 60)
        return "program with 10,000 tasks: " + spent(browser)
    finally:
        browser.eval("localStorage.removeItem('windlass.limit')")
        program.stop()


def check_token(browser, program, _):
    program = Program(program.command, "--token", "secret/+&")
    try:
        load(browser, program.url + "?token=secret%2F%2B%26")
        fresh(browser)
        address = browser.eval("location.href")
        check("token" not in address, f"the token stays in the address: {address}")
        return f"page and events with a token, address {address}"
    finally:
        program.stop()


def spent(browser):
    """Measures the main-thread time that a snapshot takes in both views."""
    report = []
    for view in ("table", "tree"):
        browser.click("#as-" + view)
        fresh(browser, 2)
        start, first = browser.metrics()["TaskDuration"], browser.eval("+document.body.dataset.snapshot")
        fresh(browser, 6)
        end, last = browser.metrics()["TaskDuration"], browser.eval("+document.body.dataset.snapshot")
        each = 1000 * (end - start) / (last - first)
        elements = browser.eval("document.querySelectorAll('*').length")
        report.append(f"{view} {each:.0f} ms")
        check(each < 1000, f"a snapshot of {MANY} tasks takes {each:.0f} ms of main-thread time")
        check(elements < 3000, f"{elements} elements: the rows are not virtual")
    browser.click("#as-table")
    return f"main-thread time per snapshot {', '.join(report)}; {elements} elements"


def load_all(browser, imitation):
    load(browser, imitation.url)
    browser.eval("localStorage.setItem('windlass.limit', '10000')")
    load(browser, imitation.url)


def check_many(browser, imitation, pictures):
    load_all(browser, imitation)
    report = spent(browser)
    set_filter(browser, "worker 9999")
    browser.wait("the last of the tasks is found", "[...document.querySelectorAll('.row:not([hidden]) .name')].map((n) => n.textContent).join() === 'worker 9999'")
    set_filter(browser, "")
    browser.key("Escape")
    browser.key("End")
    browser.wait("End shows the last row", f"[...document.querySelectorAll('.row:not([hidden])')].some((r) => r.ariaRowIndex == {MANY + 1})")
    if pictures:
        browser.screenshot(os.path.join(pictures, "many.png"))
    return report


def check_hostile(browser, imitation, _):
    load_all(browser, imitation)
    for name in HOSTILE:
        visible = re.sub("[\u0000-\u001f\u202a-\u202e]", "\ufffd", name)
        set_filter(browser, visible[:150])
        browser.wait(f"the task {name[:40]!r} is shown as text", f"[...document.querySelectorAll('.row:not([hidden]) .name')].some((n) => n.textContent.startsWith({json.dumps(visible)}))")
        browser.key("Enter")
        browser.key("Enter")
        browser.wait("its details open", f"document.querySelector('#pane-title').textContent === {json.dumps(visible)} && !document.querySelector('#pane').hidden")
        wide = browser.eval("Math.max(document.documentElement.scrollWidth, document.querySelector('#pane-body').scrollWidth)")
        check(wide <= browser.size[0], f"the name {name[:40]!r} makes the page {wide} px wide")
        browser.key("Escape")
    check(browser.eval("document.querySelectorAll('img, script:not([nonce]), svg[onload]').length") == 0, "a name became an element")
    set_filter(browser, "")
    return f"{len(HOSTILE)} names stay text"


def check_reconnect(browser, imitation, _):
    load_all(browser, imitation)
    before = len(browser.problems)
    imitation.refuse = True
    imitation.stop_streams.set()
    browser.wait("the lost connection is shown", "!document.querySelector('#notice').hidden && document.querySelector('#link-text').textContent === 'Reconnecting'")
    browser.wait("the reason is shown", "document.querySelector('#notice').innerText.includes('limit of viewers')")
    said = browser.eval("document.querySelector('#notice span').textContent")
    check(column(browser, "name"), "the data vanished with the connection")
    imitation.refuse = False
    imitation.stop_streams.clear()
    fresh(browser, 2)
    check(browser.eval("document.querySelector('#notice').hidden && document.querySelector('#link-text').textContent") == "Live", "not live again")
    # The browser logs each refused request; nothing else may be among them.
    browser.problems[before:] = [p for p in browser.problems[before:] if not ("503" in p and p.startswith("network"))]
    return f"said {said!r}, then live again"


def main():
    parser = argparse.ArgumentParser(description="Checks the console's page in a real browser.")
    parser.add_argument("--pictures", metavar="DIRECTORY", help="save screenshots in both themes here")
    parser.add_argument("--only", metavar="NAME,...", help="run these checks alone")
    parser.add_argument("command", nargs=argparse.REMAINDER, help="the program to start")
    options = parser.parse_args()
    if not options.command:
        parser.error("name the program to start")
    if options.pictures:
        os.makedirs(options.pictures, exist_ok=True)
    chosen = options.only.split(",") if options.only else None
    real = [check_tasks, check_stall, check_filter, check_sort, check_pause, check_keyboard, check_follow, check_tree, check_theme, check_phone, check_part, check_token]
    made = [check_many, check_hostile, check_reconnect]
    failed = 0

    def run(checks, browser, subject):
        nonlocal failed
        for function in checks:
            name = function.__name__.removeprefix("check_")
            if chosen and name not in chosen:
                continue
            before = len(browser.problems)
            try:
                said = function(browser, subject, options.pictures)
                check(len(browser.problems) == before, "the browser reports: " + "; ".join(browser.problems[before:]))
                print(f"ok    {name}: {said}", flush=True)
            except Failure as failure:
                failed += 1
                print(f"FAIL  {name}: {failure}", flush=True)
                if options.pictures:
                    browser.screenshot(os.path.join(options.pictures, f"failed-{name}.png"))

    program = Program(options.command)
    try:
        print(f"console at {program.url}", flush=True)
        with Browser() as browser:
            browser.send("Page.addScriptToEvaluateOnNewDocument", source=WITNESS)
            load(browser, program.url)
            run(real, browser, program)
            imitation = Imitation(program.url, program.snapshot())
            browser.scheme("light")
            run(made, browser, imitation)
            imitation.stop_streams.set()
            imitation.shutdown()
    except Failure as failure:
        failed += 1
        print(f"FAIL  {failure}", flush=True)
    finally:
        program.stop()
    print("all checks passed" if not failed else f"{failed} checks failed")
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
