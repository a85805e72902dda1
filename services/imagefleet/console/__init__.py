"""The operators' web pages: what is wrong first, why, and what can be done about it.

A process of its own that knows nothing but the API: whoever logs in brings an operator's key, and
all that is shown and done is asked with it, by `client`. So the console can do what that key may,
and the audit tells who it was. It touches neither Postgres nor AWS nor Pillow.

A request passes `guarding` (who asks, may this be changed from here, how large it may be), then a
page of `pages`, one file a noun, which asks the API by its `Visit` and shows a template of
`templates`. What a tenant wrote is text and steers nothing: not the page, by escaping, and not the
reader's eye, by `showing`. Keys are kept in the memory of this process alone, by session: neither
cookies nor logs nor addresses have them.
"""
