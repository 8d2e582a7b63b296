"""Plots as SVG: lines and bars, linear or logarithmic, with intervals and a legend.

The background is left open and colours are of middle brightness, so that a plot can be read on a light page and on a
dark one; where the reader's program tells which it is, text and lines follow it.

    plot = Plot("Title", "x in some unit", "y in some unit", log_x=True)
    plot.line("hearth", [(1, 2.0), (10, 2.5, 2.4, 2.7)])      # x, y[, low, high]
    plot.save("path.svg")

    Bars("Title", "y", ["first group", "second"]).bar("hearth", [1, 2]).save("path.svg")
"""

import math
from xml.sax.saxutils import escape

COLOURS = {"hearth": "#d9622b", "llama-server": "#4a8fd4", "memcpy": "#8a8f98"}
SHADES = {"hearth": ("#e8a27e", "#d9622b", "#a83f10"), "llama-server": ("#8fbde8", "#4a8fd4", "#2a62a0")}
MORE_COLOURS = ("#3fa36b", "#a86bc9", "#c79a1e", "#cf5d8b", "#5aa5a5", "#8a8f98")
STYLE = """<style>
text { font: 12px system-ui, sans-serif; fill: #7d8590 } .title { font-size: 14px; font-weight: 600 }
.axis { stroke: #8b949e; stroke-width: 1 } .grid { stroke: #8b949e; stroke-opacity: .25; stroke-width: 1 }
@media (prefers-color-scheme: dark) { text { fill: #c9d1d9 } }
@media (prefers-color-scheme: light) { text { fill: #3d444d } }
</style>"""
LEFT, RIGHT, TOP, BOTTOM = 78, 24, 44, 62
LEGEND_ROW = 18


def number(value):
    """A tick's label: 0.02, 3, 40k, 1.5M."""
    size = abs(value)
    for unit, letter in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if size >= unit:
            return f"{value / unit:.4g}{letter}"
    return f"{value:.4g}"


class Axis:
    """Maps values to a range of pixels, and knows its ticks."""

    def __init__(self, values, pixels, log=False, zero=False):
        low, high = min(values), max(values)
        self.log = log and low > 0
        if self.log:
            self.low, self.high = math.log10(low), math.log10(high)
            margin = max(0.04 * (self.high - self.low), 0.05)
            self.low, self.high = self.low - margin, self.high + margin
        else:
            low = min(low, 0) if zero else low
            margin = 0.05 * ((high - low) or abs(high) or 1)
            self.low, self.high = (low if zero and low == 0 else low - margin), high + margin
        self.first, self.last = pixels

    def at(self, value):
        place = math.log10(value) if self.log else value
        return self.first + (place - self.low) / (self.high - self.low) * (self.last - self.first)

    def ticks(self):
        if self.log:
            decades = range(math.floor(self.low), math.ceil(self.high) + 1)
            steps = (1, 2, 5) if self.high - self.low < 2.2 else (1,)
            found = [step * 10.0 ** decade for decade in decades for step in steps]
            return [tick for tick in found if self.low <= math.log10(tick) <= self.high]
        rough = (self.high - self.low) / 6
        unit = 10.0 ** math.floor(math.log10(rough))
        step = next(factor * unit for factor in (1, 2, 2.5, 5, 10) if factor * unit >= rough)
        return [index * step for index in range(math.ceil(self.low / step), math.floor(self.high / step) + 1)]


class _Drawing:
    def __init__(self, title, y_label, width, height):
        self.title, self.y_label, self.width, self.height = title, y_label, width, height
        self.parts, self.names, self.bottom = [], [], height

    def colour(self, name):
        if name not in self.names:
            self.names.append(name)
        family = name.partition(", ")[0]
        if name in COLOURS:
            return COLOURS[name]
        if family in SHADES:
            own = [known for known in self.names if known.startswith(family + ", ")]
            return SHADES[family][own.index(name) % len(SHADES[family])]
        others = [known for known in self.names if known not in COLOURS]
        return MORE_COLOURS[others.index(name) % len(MORE_COLOURS)]

    def text(self, x, y, text, anchor="middle", css="", turn=None):
        turned = f' transform="rotate({turn} {x:.1f} {y:.1f})"' if turn else ""
        self.parts.append(f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" class="{css}"{turned}>'
                          f"{escape(str(text))}</text>")

    def rule(self, x1, y1, x2, y2, css="axis"):
        self.parts.append(f'<line x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}" class="{css}"/>')

    def interval(self, x, low, high, colour):
        self.parts.append(f'<path d="M{x - 3:.1f} {low:.1f}h6m-3 0V{high:.1f}m-3 0h6" fill="none" stroke="{colour}" '
                          'stroke-width="1.2"/>')

    def frame(self, y_axis):
        right, bottom = self.width - RIGHT, self.height - BOTTOM
        for tick in y_axis.ticks():
            self.rule(LEFT, y_axis.at(tick), right, y_axis.at(tick), "grid")
            self.text(LEFT - 8, y_axis.at(tick) + 4, number(tick), "end")
        self.rule(LEFT, TOP, LEFT, bottom)
        self.rule(LEFT, bottom, right, bottom)
        self.text(self.width / 2, 20, self.title, css="title")
        self.text(18, (TOP + bottom) / 2, self.y_label, turn=-90)

    def legend(self):
        """Below the plot, in as many rows as are needed; the drawing grows by them."""
        x, y = 12, self.height - 10
        for name in self.names:
            wide = 15 + 6.4 * len(name) + 12
            if x + wide > self.width and x > 12:
                x, y = 12, y + LEGEND_ROW
            self.parts.append(
                f'<rect x="{x:.1f}" y="{y - 9}" width="10" height="10" rx="2" fill="{self.colour(name)}"/>'
            )
            self.text(x + 15, y, name, "start")
            x += wide
        self.bottom = y + 10

    def save(self, path):
        body = "\n".join(self.draw())
        with open(path, "w", encoding="utf-8") as file:
            file.write(f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {self.width} {self.bottom}" '
                       f'width="{self.width}" height="{self.bottom}" role="img">\n<title>{escape(self.title)}</title>\n'
                       f"{STYLE}\n{body}\n</svg>\n")


class Plot(_Drawing):
    """Lines through points, with their intervals where they have some."""

    def __init__(self, title, x_label, y_label, log_x=False, log_y=False, ticks=None, width=640, height=360):
        super().__init__(title, y_label, width, height)
        self.x_label, self.log_x, self.log_y, self.x_ticks, self.lines = x_label, log_x, log_y, ticks, []

    def line(self, name, points, dashed=False):
        points = [tuple(point) for point in points if point[1] is not None]
        if points:
            self.lines.append((name, points, dashed))
        return self

    def draw(self):
        points = [point for _, line, _ in self.lines for point in line]
        x_axis = Axis([point[0] for point in points], (LEFT, self.width - RIGHT), self.log_x)
        y_axis = Axis([value for point in points for value in point[1:] if value is not None],
                      (self.height - BOTTOM, TOP), self.log_y, zero=True)
        self.parts = []
        self.frame(y_axis)
        for tick in self.x_ticks or x_axis.ticks():
            self.rule(x_axis.at(tick), self.height - BOTTOM, x_axis.at(tick), self.height - BOTTOM + 4)
            self.text(x_axis.at(tick), self.height - BOTTOM + 17, number(tick))
        self.text((LEFT + self.width - RIGHT) / 2, self.height - BOTTOM + 34, self.x_label)
        for name, line, dashed in self.lines:
            colour = self.colour(name)
            places = [(x_axis.at(point[0]), y_axis.at(point[1])) for point in line]
            path = "L".join(f"{x:.1f} {y:.1f}" for x, y in places)
            dash = ' stroke-dasharray="6 4"' if dashed else ""
            self.parts.append(f'<path d="M{path}" fill="none" stroke="{colour}" stroke-width="2"{dash}/>')
            for (x, y), point in zip(places, line):
                self.parts.append(f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3" fill="{colour}"/>')
                if len(point) == 4 and None not in point:
                    self.interval(x, y_axis.at(point[2]), y_axis.at(point[3]), colour)
        self.legend()
        return self.parts


class Bars(_Drawing):
    """Groups of bars beside each other; a value is a number, or (number, low, high), or None."""

    def __init__(self, title, y_label, groups, log_y=False, width=None, height=360):
        super().__init__(title, y_label, width or max(480, LEFT + RIGHT + 74 * len(groups)), height)
        self.groups, self.log_y, self.series = groups, log_y, []

    def bar(self, name, values):
        self.series.append((name, [value if isinstance(value, tuple) else (value,) for value in values]))
        return self

    def draw(self):
        values = [value for _, row in self.series for each in row for value in each if value is not None]
        y_axis = Axis([*values, *([1] if self.log_y else [])], (self.height - BOTTOM, TOP), self.log_y, zero=True)
        self.parts = []
        self.frame(y_axis)
        room = (self.width - LEFT - RIGHT) / len(self.groups)
        wide = 0.8 * room / len(self.series)
        bottom = self.height - BOTTOM
        for place, group in enumerate(self.groups):
            for line, word in enumerate(str(group).split("\n")):
                self.text(LEFT + (place + 0.5) * room, bottom + 16 + 14 * line, word)
        for index, (name, row) in enumerate(self.series):
            colour = self.colour(name)
            for place, value in enumerate(row):
                if value[0] is None:
                    continue
                x, y = LEFT + place * room + 0.1 * room + index * wide, y_axis.at(value[0])
                self.parts.append(f'<rect x="{x:.1f}" y="{y:.1f}" width="{wide - 2:.1f}" height="{bottom - y:.1f}" '
                                  f'rx="1.5" fill="{colour}"/>')
                if len(value) == 3 and None not in value:
                    self.interval(x + wide / 2 - 1, y_axis.at(value[1]), y_axis.at(value[2]), "#7d8590")
        self.legend()
        return self.parts
