"""Inside other people's training programs: capture a profile of a few steps and send it to an `asap serve`.

`profile_upload.py` does the work for any loop; `hugging_face.py`, `lightning.py` and `torchtitan.py` fit it
to three trainers. The training environment needs torch, httpx, pydantic, msgspec, isal and numpy.
"""
