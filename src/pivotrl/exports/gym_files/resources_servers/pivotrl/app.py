"""Rewards by PivotRL's verifier; `verifier:` in configs/pivotrl.yaml says which."""

from pivotrl.exports.gym_server import gym_server

PivotRLServer = gym_server()

if __name__ == "__main__":
    PivotRLServer.run_webserver()
