"""From any text to what the quickstart needs: documents of sentences, and a labelled task."""
