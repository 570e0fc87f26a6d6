"""POST /v1/predict answers as `Model.predict` does, and refuses in its words."""

from tests.serve.client import encoded, run, served


@run
async def test_an_image_is_answered_as_predict_does(model, street):
    async with served({"demo": model}) as client:
        answer = await client.post("/v1/predict", content=encoded(street))
    assert answer.status_code == 200, answer.text
    assert answer.headers["content-type"] == "application/json"
    assert answer.json() == model.predict(street).as_dict()
    assert len(answer.json()["detections"]) > 0
    assert [part.split(";")[0] for part in answer.headers["server-timing"].split(", ")] == [
        "decode",
        "queue",
        "predict",
        "encode",
    ]
