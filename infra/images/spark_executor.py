"""What an executor's pod on Kubernetes runs: Spark hands arguments over in variables, as it does to its own images."""

import importlib.util
import os

variables = os.environ
spark = importlib.util.find_spec("pyspark").submodule_search_locations[0]
prefix = "SPARK_JAVA_OPT_"
options = sorted(
    (name for name in variables if name.startswith(prefix)), key=lambda name: int(name.removeprefix(prefix))
)
paths = [variables.get("SPARK_CONF_DIR", ""), f"{spark}/jars/*", variables.get("SPARK_EXTRA_CLASSPATH", "")]
command = [
    "java",
    *(variables[name] for name in options),
    f"-Xms{variables['SPARK_EXECUTOR_MEMORY']}",
    f"-Xmx{variables['SPARK_EXECUTOR_MEMORY']}",
    "-cp",
    ":".join(path for path in paths if path),
    "org.apache.spark.scheduler.cluster.k8s.KubernetesExecutorBackend",
]
for option, variable in {
    "--driver-url": "SPARK_DRIVER_URL",
    "--executor-id": "SPARK_EXECUTOR_ID",
    "--cores": "SPARK_EXECUTOR_CORES",
    "--app-id": "SPARK_APPLICATION_ID",
    "--hostname": "SPARK_EXECUTOR_POD_IP",
    "--resourceProfileId": "SPARK_RESOURCE_PROFILE_ID",
    "--podName": "SPARK_EXECUTOR_POD_NAME",
}.items():
    command += [option, variables[variable]]
os.execvp(command[0], command)
