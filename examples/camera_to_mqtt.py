"""Tell an MQTT broker every second how many things of each class a camera sees, for home automation and dashboards.

    pip install '.[mqtt]'
    python examples/camera_to_mqtt.py rtsp://gate/1 mqtt://user:password@broker/street/gate

The topic keeps the last message, as {"online": true, "time_s": 12.4, "car": 3, "person": 1}; the broker itself says
{"online": false} once this program is gone. A camera that breaks off is opened again, so is the broker's connection.
A file does in place of a camera. For events of lines and zones `maskjet run --count … -o mqtt://…` is enough.
"""

import json
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from threading import Event
from urllib.parse import unquote, urlsplit

from paho.mqtt.client import Client
from paho.mqtt.enums import CallbackAPIVersion

import maskjet

EVERY_S, OFFLINE = 1.0, json.dumps({"online": False})


@contextmanager
def connect(url: str) -> Iterator[tuple[Client, str]]:
    """Connect to a broker; yields the client and the topic, on which the end is told however it comes."""
    address, publisher, answered = urlsplit(url), Client(CallbackAPIVersion.VERSION2), Event()
    name = unquote(address.path.removeprefix("/"))
    publisher.username_pw_set(address.username and unquote(address.username), unquote(address.password or ""))
    publisher.will_set(name, OFFLINE, qos=1, retain=True)
    publisher.on_connect = lambda *_: answered.set()
    publisher.connect(address.hostname or "localhost", address.port or 1883)
    publisher.loop_start()  # sends in a thread of its own, so that no frame waits for the broker
    try:
        if not answered.wait(10) or not publisher.is_connected():
            sys.exit(f"The broker {address.hostname} refuses, or does not answer.")
        yield publisher, name
    finally:
        if publisher.is_connected():  # else the broker says so
            publisher.publish(name, OFFLINE, qos=1, retain=True).wait_for_publish(timeout=5)
        publisher.disconnect()
        publisher.loop_stop()


if __name__ == "__main__":
    (_, camera, broker), due_s = sys.argv, 0.0
    with (
        maskjet.load("demo") as model,  # or a checkpoint of your own
        maskjet.open_source(camera) as source,
        connect(broker) as (client, topic),
    ):
        for frame, found in model.stream(source, drop_late=source.is_live):
            if (time_s := frame.time_s or 0.0) >= due_s and client.is_connected():  # messages of the past are not kept
                due_s = time_s + EVERY_S
                seen = dict.fromkeys(model.spec.class_names.values(), 0) | Counter(found.class_name.tolist())
                message = json.dumps({"online": True, "time_s": round(time_s, 3)} | seen)
                client.publish(topic, message, qos=1, retain=True)
