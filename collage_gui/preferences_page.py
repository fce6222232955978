"""Shows the settings; each line says what a change causes."""

from __future__ import annotations

from PySide6.QtCore import Qt
from PySide6.QtGui import QIcon
from PySide6.QtWidgets import (
    QCheckBox,
    QComboBox,
    QDialog,
    QDialogButtonBox,
    QGridLayout,
    QGroupBox,
    QLabel,
    QVBoxLayout,
    QWidget,
)

from collage_gui.preferences import EFFECTS, PREFERENCES, Preference, Preferences
from collage_gui.widgets import lay_out, named, text_label


class PreferencesPage(QDialog):
    """The page of settings, which applies every change at once."""

    def __init__(self, preferences: Preferences, parent: QWidget) -> None:
        super().__init__(parent)
        self.preferences = preferences
        self.setObjectName("preferencesPage")
        self.setWindowTitle("Settings")
        groups = []
        for page in dict.fromkeys(p.page for p in PREFERENCES):
            group = QGroupBox(page)
            grid = QGridLayout(group)
            grid.setColumnStretch(1, 1)
            grid.setHorizontalSpacing(18)
            for row, preference in enumerate(p for p in PREFERENCES if p.page == page):
                name = f"preference-{preference.key}"
                editor = named(self._editor(preference), name, preference.title)
                effect = text_label(EFFECTS[preference.effect], "small", wraps=False)
                if isinstance(editor, QCheckBox):
                    grid.addWidget(editor, row, 0, 1, 2)
                else:
                    grid.addWidget(QLabel(preference.title), row, 0)
                    grid.addWidget(editor, row, 1)
                grid.addWidget(effect, row, 2, Qt.AlignmentFlag.AlignRight)
            groups.append(group)
        buttons = QDialogButtonBox(QDialogButtonBox.StandardButton.Close)
        buttons.rejected.connect(self.reject)
        buttons.button(QDialogButtonBox.StandardButton.Close).setIcon(QIcon())
        lay_out(QVBoxLayout(self), *groups, None, buttons, margins=(20, 16, 20, 14))
        self.setMinimumWidth(700)

    def _editor(self, preference: Preference) -> QWidget:
        key, value = preference.key, self.preferences.get(preference.key)
        if preference.choices:
            combo = QComboBox()
            for choice, label in preference.choices:
                combo.addItem(label, choice)
                if choice == value:
                    combo.setCurrentIndex(combo.count() - 1)
            combo.activated.connect(lambda _: self.preferences.set(key, combo.currentData()))
            return combo
        check = QCheckBox(preference.title)
        check.setChecked(value)
        check.toggled.connect(lambda on: self.preferences.set(key, on))
        return check
