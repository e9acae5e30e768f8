/* Workers of pages that are opened from a folder, where browsers refuse to start one: the script runs in a hidden frame
   that exchanges the same messages. The search of the site needs no more of a worker. */
if (location.protocol === "file:") {
  window.Worker = class extends EventTarget {
    constructor(url) {
      super();
      const frame = document.createElement("iframe");
      frame.hidden = true;
      document.body.append(frame);
      this.scope = frame.contentWindow;
      this.scope.postMessage = (data) => {
        const message = new MessageEvent("message", { data });
        this.dispatchEvent(message);
        this.onmessage?.(message);
      };
      this.scope.importScripts = (...urls) => urls.reduce((before, next) => before.then(() => this.load(next)), this.loaded);
      this.loaded = this.load(url);
    }

    load(url) {
      return new Promise((resolve, reject) => {
        const script = this.scope.document.createElement("script");
        script.onload = resolve;
        script.onerror = reject;
        script.src = url;
        this.scope.document.body.append(script);
      });
    }

    postMessage(data) {
      this.loaded.then(() => this.scope.dispatchEvent(new this.scope.MessageEvent("message", { data })));
    }
  };
}
