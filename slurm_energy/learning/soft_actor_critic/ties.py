"""What keeps parts of the network to their meaning while the critics train it."""

import torch
from torch import Tensor

from slurm_energy.graph import schema
from slurm_energy.learning.soft_actor_critic.batches import Batch
from slurm_energy.learning.soft_actor_critic.critics import Judged
from slurm_energy.learning.soft_actor_critic.settings import SoftActorCriticSettings
from slurm_energy.policy.gnn.levels import floats
from slurm_energy.policy.gnn.network import HierarchicalNetwork

_OPTION_COLUMNS = [schema.column(schema.OPTION, "seconds"), schema.column(schema.OPTION, "joules")]
_WAITED = schema.column(schema.TASK, "waited_seconds")


def tie_loss(network: HierarchicalNetwork, settings: SoftActorCriticSettings, judged: Judged, batch: Batch) -> Tensor:
    """Return the weighted losses beside the critics': of tied attention heads and of differentiable pooling.

    Tied heads tell the log time and log energy of the option that was taken and how long the job has waited, as in
    training by imitation.
    """
    loss = judged.first.new_zeros(())
    if network.config.attention == "objectives":
        option_x, job_x = floats(batch.now.decision.option_x), floats(batch.now.decision.job_x)
        goals = torch.cat([option_x[batch.taken][:, _OPTION_COLUMNS], job_x[:, [_WAITED]]], dim=1)  # [batch, 3]
        loss = loss + settings.objective_weight * torch.nn.functional.mse_loss(judged.objectives, goals)
    if network.config.pooling in {"mixed", "differentiable"}:
        devices = judged.state.devices
        loss = loss + settings.pooling_weight * (devices.link_loss + 0.1 * devices.entropy_loss)
    return loss
