"""Tables in docs/conformance.md that programs of this folder write: between the lines `<!-- NAME: begin -->` and
`<!-- NAME: end -->`."""
import os
import re

PAGE = os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "docs/conformance.md")


def write(name, lines):
    """Replaces the table between the two marks of `name`."""
    with open(PAGE) as page:
        text = page.read()
    begin, end = f"<!-- {name}: begin -->\n", f"<!-- {name}: end -->"
    if begin not in text or end not in text:
        raise SystemExit(f"{PAGE}: there is no place for the table {name}")
    table = "\n".join(lines) + "\n"
    with open(PAGE, "w") as page:
        page.write(re.sub(re.escape(begin) + ".*?" + re.escape(end), lambda _: begin + table + end, text, flags=re.S))
