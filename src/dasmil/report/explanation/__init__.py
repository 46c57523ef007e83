"""Pictures and the page of an explanation: what `dasmil explain` writes for one bag."""
