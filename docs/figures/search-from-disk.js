/* The search runs in a Worker, which browsers refuse to pages that are opened from the disk. There, a hidden frame does its work. */
if (location.protocol === "file:") {
  window.Worker = class extends EventTarget {
    constructor(source) {
      super();
      const home = new URL(source, document.baseURI);
      const frame = document.createElement("iframe");
      frame.hidden = true;
      document.body.append(frame);
      const inside = frame.contentWindow;
      const load = (place) =>
        new Promise((loaded, failed) => {
          const script = inside.document.createElement("script");
          script.src = new URL(place, home);
          script.onload = loaded;
          script.onerror = failed;
          inside.document.head.append(script);
        });
      inside.importScripts = (...places) => places.reduce((before, place) => before.then(() => load(place)), Promise.resolve());
      inside.postMessage = (data) => this.deliver(this, data);
      this.inside = inside;
      this.ready = load(home);
    }
    postMessage(data) {
      this.ready.then(() => this.deliver(this.inside, data));
    }
    deliver(whom, data) {
      const message = new MessageEvent("message", { data });
      whom.dispatchEvent(message);
      if (whom === this && this.onmessage) this.onmessage(message);
    }
    terminate() {}
  };
}
