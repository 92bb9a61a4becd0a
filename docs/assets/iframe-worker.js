// A page that is opened from a folder may start no worker: there the search runs in a hidden frame.
"use strict";

if (location.protocol === "file:") {
  window.Worker = class extends EventTarget {
    constructor(address) {
      super();
      const frame = document.createElement("iframe");
      frame.hidden = true;
      this.scope = new Promise((resolve) => {
        frame.addEventListener("load", () => resolve(this.started(frame, address)), { once: true });
      });
      document.documentElement.append(frame); // there may be no body yet
    }

    async started({ contentWindow, contentDocument }, address) {
      contentWindow.postMessage = (data) => this.dispatchEvent(new MessageEvent("message", { data }));
      const script = contentDocument.createElement("script");
      script.src = address;
      contentDocument.body.append(script);
      await new Promise((resolve) => script.addEventListener("load", resolve));
      return contentWindow;
    }

    async postMessage(data) {
      (await this.scope).dispatchEvent(new MessageEvent("message", { data }));
    }
  };
}
