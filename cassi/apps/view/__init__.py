"""cassi-view: snapshots, reconstructions and folders of results, in the browser."""
