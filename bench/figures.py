"""The figures that the programs of bench/ print. Each figure is a line, which bench/all reads.

    figure: demo.light 0.98 times

A program declares its figures, `{key: unit}`, once. `--figures` lists the figures without measuring, so that bench/all --check
can verify that each figure has its row in PROMISES.md. A figure that was not measured has no line.
"""
import re
import sys

LINE = re.compile(r"^figure: (\S+) (-?\d+(?:\.\d+)?(?:e[-+]?\d+)?) (\S.*?)\s*$", re.MULTILINE)


class Figures:
    def __init__(self, units):
        self.units = units

    def tell(self, key, value):
        """Prints a figure; nothing if `value` is None. A figure that was not declared is a bug of the program: KeyError."""
        unit = self.units[key]
        if value is not None:
            print(f"figure: {key} {value:.6g} {unit}", flush=True)

    def list_if_asked(self, arguments):
        if "--figures" in arguments:
            for key, unit in self.units.items():
                print(key, unit)
            sys.exit(0)


def found(printed):
    """The figures in a program's output: {key: [(value, unit)]}, in the order in which they were printed."""
    figures = {}
    for key, value, unit in LINE.findall(printed):
        figures.setdefault(key, []).append((float(value), unit))
    return figures
