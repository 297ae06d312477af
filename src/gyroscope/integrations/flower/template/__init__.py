"""The files of the app that `gyroscope flower new` writes. They are copied, never imported from here."""
