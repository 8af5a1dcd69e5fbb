"""The dashboard: every run below a folder in a browser, from curves to spike texts. Read-only;
needs no torch.

Pages are built on the server from the same parts as the report (report/html), so everything that
comes from data is escaped. The script (web/src, built into static/) draws curves, follows a run and
turns links into partial page updates; the URL holds the state. Nothing is loaded from other hosts.
"""
