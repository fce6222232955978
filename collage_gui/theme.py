"""Chooses colours, fonts and the style sheet of the light, dark and high-contrast themes.

Widgets are neutral grey; saturated colour belongs to data. One colour marks the selection and the
focus, everywhere the same.
"""

from __future__ import annotations

from string import Template

import msgspec
from PySide6.QtCore import QObject, Qt, Signal
from PySide6.QtGui import QColor, QFont, QFontDatabase, QGuiApplication, QPalette
from PySide6.QtWidgets import QApplication

from collage_engine.drawing.palette import CONTRAST, DARK, LIGHT, Colours, mix
from collage_engine.support.files import resource
from collage_gui.preferences import Preferences

UNIT = 8
"""Pixels of the grid on which widgets lie: gaps and sizes are multiples or halves of it, as in
Material Design (m3.material.io, "Layout, Spacing")."""
INSTANT_MS, FLOW_MS, ATTENTION_MS = 100, 1_000, 10_000
"""Nielsen's limits on response times (Usability Engineering, 1993, section 5.5), in milliseconds:
what comes within the first seems to come at once, within the second a train of thought is not
interrupted, and for the third the attention is kept."""
COLUMN_LETTERS, LINE_LETTERS = 50, 66
"""Letters of a line beside another column, and of one that stands alone (Bringhurst, The Elements
of Typographic Style, 2.1.2)."""
NAME_LETTERS = 10
"""Letters of a name that are shown wherever it has to be cut; chosen, since fewer do not tell the
names of a model's operators apart."""
KEPT = 2_000
"""Entries that a log or a history keeps; chosen, so that a flood of them costs no noticeable
memory."""


class Theme(QObject):
    """Keeps the theme in force; ``changed`` follows a change of colours or fonts."""

    changed = Signal()

    def __init__(self, preferences: Preferences) -> None:
        super().__init__()
        self.preferences = preferences
        self.colours = LIGHT
        self._families = _load_fonts()
        preferences.changed.connect(self._preference)
        hints = QGuiApplication.styleHints()
        hints.colorSchemeChanged.connect(self.apply)
        access = hints.accessibility()
        access.contrastPreferenceChanged.connect(self.apply)
        self.apply()

    def _preference(self, key: str) -> None:
        if key in ("theme", "text_scale"):
            self.apply()

    def pick(self) -> Colours:
        """Return the colours that the settings and the system ask for."""
        wanted = self.preferences.get("theme")
        hints = QGuiApplication.styleHints()
        if wanted == "system":
            if hints.accessibility().contrastPreference() == Qt.ContrastPreference.HighContrast:
                return CONTRAST
            return DARK if hints.colorScheme() == Qt.ColorScheme.Dark else LIGHT
        return {"light": LIGHT, "dark": DARK, "contrast": CONTRAST}.get(wanted, LIGHT)

    def font(self, size: float = 13.0, weight: QFont.Weight = QFont.Weight.Normal) -> QFont:
        """Return the font of the program, in pixels at 100 %, with figures of equal width."""
        font = QFont()
        font.setFamilies(self._families)
        font.setPixelSize(max(8, round(size * self.preferences.get("text_scale"))))
        font.setWeight(weight)
        font.setFeature(QFont.Tag("tnum"), 1)
        return font

    def mono(self) -> QFont:
        """Return the system's font of equal widths, in pixels at 100 %."""
        font = QFontDatabase.systemFont(QFontDatabase.SystemFont.FixedFont)
        font.setPixelSize(max(8, round(12 * self.preferences.get("text_scale"))))
        return font

    def scaled(self, pixels: float) -> int:
        """Return pixels at 100 % at the chosen text size."""
        scale: float = self.preferences.get("text_scale")
        return round(pixels * scale)

    def apply(self, *_: object) -> None:
        """Give the application its colours, fonts and style sheet."""
        app = QApplication.instance()
        assert isinstance(app, QApplication)
        self.colours = self.pick()
        app.setStyle("Fusion")
        app.setPalette(_palette(self.colours))
        app.setFont(self.font())
        app.setStyleSheet(_sheet(self))
        self.changed.emit()


def _load_fonts() -> list[str]:
    families: list[str] = []
    for name in ("Inter-Regular.otf", "Inter-Medium.otf", "Inter-SemiBold.otf"):
        number = QFontDatabase.addApplicationFont(str(resource(f"fonts/{name}")))
        if number >= 0:
            families += QFontDatabase.applicationFontFamilies(number)
    return [*dict.fromkeys(families), "Inter", "Segoe UI", "Noto Sans", "DejaVu Sans"]


def _palette(c: Colours) -> QPalette:
    palette = QPalette(QColor(c.raised), QColor(c.panel))
    role = QPalette.ColorRole
    for which, colour in (
        (role.WindowText, c.text),
        (role.Base, c.panel),
        (role.Text, c.text),
        (role.ButtonText, c.text),
        (role.BrightText, c.error_text),
        (role.Highlight, c.focus),
        (role.HighlightedText, c.on_focus),
        (role.ToolTipBase, c.raised),
        (role.ToolTipText, c.text),
        (role.PlaceholderText, c.faint),
        (role.Link, c.focus),
    ):
        palette.setColor(which, QColor(colour))
    for which in (role.WindowText, role.Text, role.ButtonText):
        palette.setColor(QPalette.ColorGroup.Disabled, which, QColor(c.faint))
    return palette


def _sheet(theme: Theme) -> str:
    c = theme.colours
    values = {key: str(value) for key, value in msgspec.structs.asdict(c).items()}
    values["icons"] = resource("icons").as_posix()
    values["selected"] = mix(c.panel, c.focus, 0.35 if c.name == "contrast" else 0.2)
    for key, size in (("heading", 14), ("title", 26), ("small", 11.5)):
        values[key] = str(theme.scaled(size))
    return Template(resource("style.qss").read_text(encoding="utf-8")).substitute(values)
