"""Opens pages in headless Chromium.

A probe is put into a copy of the page whose policy admits it; the copy is opened from a file, as a
reader opens it.
"""

import json
import re
import subprocess

FLAGS = [
    "chromium", "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
    "--disable-background-networking", "--disable-component-update", "--disable-sync",
    "--hide-scrollbars", "--virtual-time-budget=20000",
]  # fmt: skip
# Waits until a condition holds, and what the probes look at.
HELP = """
const wait = async (test) => {
  for (let i = 0; i < 200 && !test(); i++) await new Promise(r => setTimeout(r, 20));
};
const id = name => document.getElementById(name);
const all = text => [...document.querySelectorAll(text)];
const choose = (name, value) => {
  id(name).value = value;
  id(name).dispatchEvent(new Event('change'));
};
const key = (element, name) => element.dispatchEvent(
  new KeyboardEvent('keydown', {key: name, bubbles: true, cancelable: true}));
"""

# Windows of Chromium are at least 500 pixels wide, frames are not.
FRAME = """<meta name=color-scheme content="light dark"><pre id="seen"></pre>
<iframe width={width} height=1400 style="border: 0" src=probe.html></iframe><script>
setInterval(() => {{
  const seen = document.querySelector('iframe').contentDocument.getElementById('seen');
  document.getElementById('seen').textContent = seen ? seen.textContent : '';
}}, 100);
</script>"""


def probed(html, script, folder, *flags, width=None):
    """Returns what a probe has put into the object `seen`; with a width, the page is in a frame."""
    probe = html.with_name("probe.html")
    text = html.read_text()
    text = re.sub(r"script-src '[^;]*;", "script-src 'unsafe-inline' 'self' file:;", text)
    end = "id('seen').textContent = JSON.stringify(seen);"
    script = f"(async () => {{ const seen = {{}}; {HELP}; {script}; {end} }})()"
    probe.write_text(
        text.replace("</body>", f"<pre id=seen></pre><script>{script}</script></body>")
    )
    opened = probe
    if width:
        opened = html.with_name("frame.html")
        opened.write_text(FRAME.format(width=width))
        flags = (*flags, "--allow-file-access-from-files")
    done = subprocess.run(
        [*FLAGS, *flags, f"--user-data-dir={folder / 'profile'}", "--dump-dom", opened.as_uri()],
        capture_output=True, text=True, timeout=300,
    )  # fmt: skip
    probe.unlink()
    found = re.search(r'<pre id="seen">(.*?)</pre>', done.stdout, re.DOTALL)
    assert found, done.stderr[-2000:]
    return json.loads(found[1].replace("&lt;", "<").replace("&gt;", ">").replace("&amp;", "&"))


# The contrast of each visible text with its background, as in WCAG 2; colours that Chromium does not
# write as rgb() are left out.
CONTRAST = """
const light = colour => {
  const parts = colour.match(/[\\d.]+/g).map(Number);
  const linear = parts.slice(0, 3).map(v => v / 255).map(v =>
    v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4);
  return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2];
};
const background = element => {
  const colour = getComputedStyle(element).backgroundColor;
  return colour !== 'rgba(0, 0, 0, 0)' || !element.parentElement ? colour
    : background(element.parentElement);
};
const ratio = (a, b) => (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
const hasText = element => [...element.childNodes].some(n => n.nodeType === 3 && n.data.trim());
const faint = all('body *:not(script, svg *, option, noscript, #seen)').filter(hasText)
  .filter(e => e.checkVisibility() && background(e).startsWith('rgb('))
  .filter(e => ratio(light(getComputedStyle(e).color), light(background(e))) < 4.5);
"""


def looks(html, folder, width, *, dark, ready="true"):
    """Returns a page's width, what overflows it, whether it is dark, and texts that are faint."""
    script = f"""
    await wait(() => {ready});
    {CONTRAST}
    seen.width = innerWidth;
    seen.overflow = document.documentElement.scrollWidth - innerWidth;
    seen.dark = light(background(document.body)) < 0.1;
    seen.faint = [...new Set(faint.map(e => e.tagName + '.' + e.className + ' ' + e.textContent))];
    """
    theme = f"--blink-settings=preferredColorScheme={0 if dark else 1}"
    return probed(html, script, folder, theme, width=width)
