// The login page, for a link that its reader opened by hand: it goes on without a second click. A page that the
// browser only prepares in advance waits until somebody really looks at it.
const form = document.querySelector("form[data-posts-itself]");
const goOn = () => form?.requestSubmit();
if (document.prerendering) document.addEventListener("prerenderingchange", goOn, { once: true });
else goOn();
