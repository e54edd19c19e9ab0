"""What the pages share: templates, scripts, rendering, forms. A feature's pages stand in its folder.

They show what the same functions give that the API calls; a little script comes on top. Not here: who may do
what (service/access), and any arithmetic about performance (tools).
"""
