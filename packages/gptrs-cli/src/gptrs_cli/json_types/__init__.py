"""The JSON that commands print: `docs/json.md` and `docs/json.schema.json` are made of these."""
