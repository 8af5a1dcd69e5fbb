from sonde.report.facts import gather as gather
from sonde.report.html.cell import show as show
from sonde.report.html.page import render_html as render_html
from sonde.report.markdown import render_markdown as render_markdown
