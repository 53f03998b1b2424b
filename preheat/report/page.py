"""An explanation as a page: one HTML file without outside parts, escaped, light and dark.

    Path("page.html").write_text(page(preheat.explain(f)(x)))
"""

from typing import Any

import jinja2

from preheat.base.reasons import REASONS, explain

_TEMPLATE = """\
<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{{ found.name }}: {{ found.summary }}</title>
<style>
:root { color-scheme: light dark; --line: #8884; --soft: #8882; --strong: #b4540a; }
body { font: 16px/1.5 system-ui, sans-serif; max-width: 60rem; margin: 2rem auto; padding: 0 1rem; }
h1 { font-size: 1.4rem; } h2 { font-size: 1.1rem; margin-top: 2rem; }
article { border: 1px solid var(--line); border-left: 4px solid var(--strong); border-radius: 4px;
  padding: .5rem 1rem; margin: 1rem 0; }
pre { background: var(--soft); padding: .5rem .75rem; border-radius: 4px; overflow-x: auto; }
code, pre { font: .9rem/1.45 ui-monospace, monospace; }
.place { opacity: .75; } .kind { color: var(--strong); font-weight: 600; }
dt { font-weight: 600; } dd { margin: 0 0 .5rem 0; }
</style>
</head>
<body>
<h1><code>{{ found.name }}</code></h1>
<p>{{ found.summary }}</p>
{% if found.error is not none %}
<p>The call raised <code>{{ found.error.__class__.__name__ }}: {{ found.error }}</code>.</p>
{% endif %}
{% if found.breaks %}<h2>Breaks</h2>{% endif %}
{% for row in found.breaks %}
<article>
<p><span class="kind">{{ row.reason }}</span> <span class="place">{{ row.place }}</span></p>
{% if row.code %}<pre>{{ row.code.strip() }}</pre>{% endif %}
<dl>
<dt>What</dt><dd>{{ sentence(row) }}</dd>
<dt>What to do</dt><dd>{% if "\n" in row.hint or row.hint.startswith("instead:") %}
<pre>{{ row.hint }}</pre>{% else %}{{ row.hint }}{% endif %}</dd>
<dt>What it costs</dt><dd>{{ row.cost }}</dd>
</dl>
</article>
{% endfor %}
{% if found.tuned %}<h2>Chosen by measurement</h2>
<ul>{% for what in found.tuned %}<li>{{ what }}</li>{% endfor %}</ul>{% endif %}
{% if found.symbols %}<h2>Sizes and numbers of any value</h2>
<ul>{% for path in found.symbols %}<li>{{ path }}</li>{% endfor %}</ul>{% endif %}
{% if found.held %}<h2>The same so far; another value makes it a symbol, where nothing else is said</h2>
<ul>{% for text in found.held %}<li>{{ text }}</li>{% endfor %}</ul>{% endif %}
{% if found.numbers %}<h2>Sizes and numbers that calls were captured for</h2>
<ul>{% for pin in found.numbers %}<li>{{ pin }}; {{ pin.hint }}</li>{% endfor %}</ul>{% endif %}
{% if found.fallbacks %}<h2>Parts that run op by op</h2>
<ul>{% for why in found.fallbacks %}<li>{{ why }}</li>{% endfor %}</ul>{% endif %}
{% if found.direct %}<h2>Parts without a CUDA graph</h2>
<ul>{% for why in found.direct %}<li>{{ why }}</li>{% endfor %}</ul>{% endif %}
{% if found.guards %}<details><summary>{{ found.guards | length }} guards, checked on every call
</summary><pre>{% for line in found.guards %}{{ line }}
{% endfor %}</pre></details>{% endif %}
</body>
</html>
"""


def page(found: Any) -> str:
    """The page of an `Explanation`."""
    environment = jinja2.Environment(
        autoescape=True, trim_blocks=True, lstrip_blocks=True, undefined=jinja2.StrictUndefined)
    return environment.from_string(_TEMPLATE).render(found=found, sentence=_sentence)


def _sentence(row: Any) -> str:
    """What happened, of a reason that the table knows; else its detail."""
    if row.reason not in REASONS:
        return row.detail
    return f"The call {explain(row.reason, row.detail)[0]}."
