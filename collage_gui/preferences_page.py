"""Shows the settings of the window."""

from __future__ import annotations

from functools import partial

from PySide6.QtGui import QIcon
from PySide6.QtWidgets import (
    QCheckBox,
    QComboBox,
    QDialog,
    QDialogButtonBox,
    QFormLayout,
    QGroupBox,
    QVBoxLayout,
    QWidget,
)

from collage_gui.preferences import PREFERENCES, Preferences
from collage_gui.widgets import form_row, lay_out, named


class PreferencesPage(QDialog):
    """The page of settings, which applies every change at once."""

    def __init__(self, preferences: Preferences, parent: QWidget) -> None:
        super().__init__(parent)
        self.setObjectName("preferencesPage")
        self.setWindowTitle("Settings")
        groups = {each.page: QGroupBox(each.page) for each in PREFERENCES}
        forms = {page: QFormLayout(group) for page, group in groups.items()}
        for each in PREFERENCES:
            name, keep = f"preference-{each.key}", partial(preferences.set, each.key)
            if each.choices:
                combo = form_row(forms[each.page], each.title, QComboBox(), name)
                for value, label in each.choices:
                    combo.addItem(label, value)
                combo.setCurrentIndex(combo.findData(preferences.get(each.key)))
                combo.activated.connect(lambda _, keep=keep, combo=combo: keep(combo.currentData()))
            else:
                check = named(QCheckBox(each.title), name, each.title)
                check.setChecked(preferences.get(each.key))
                check.toggled.connect(keep)
                forms[each.page].addRow(check)
        buttons = QDialogButtonBox(QDialogButtonBox.StandardButton.Close)
        buttons.rejected.connect(self.reject)
        buttons.button(QDialogButtonBox.StandardButton.Close).setIcon(QIcon())
        lay_out(QVBoxLayout(self), *groups.values(), None, buttons, edge=2)
