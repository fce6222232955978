"""Shows the main window: tabs of documents, the engine behind them, actions, menus, toolbar."""
