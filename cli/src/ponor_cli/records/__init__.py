"""Records of topics as text: `ponor topic produce` and `ponor topic consume`."""
