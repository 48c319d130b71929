"""Lines as the real programs print them. Forms and versions: tests/parse/forms.toml holds the same ones."""
