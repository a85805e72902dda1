"use strict";

const page = document.getElementById("api");

// No address of anybody else is asked, and a key that was typed is forgotten with the page.
SwaggerUIBundle({
  domNode: page,
  url: page.dataset.document,
  validatorUrl: null,
  persistAuthorization: false,
  deepLinking: true,
  displayRequestDuration: true,
  defaultModelsExpandDepth: 0,
});
